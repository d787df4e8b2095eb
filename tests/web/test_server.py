from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from stepscope.core.errors import StepscopeError
from stepscope.web.server import application


def test_an_application_serves_what_it_was_given(folder):
    app = application([str(folder)])
    assert TestClient(app, base_url="http://localhost").get("/api/progress").json()["inputs"] == ["rank0", "rank1"]
    app.state.session.close()


def test_beyond_loopback_a_token_is_a_must(folder):
    with pytest.raises(StepscopeError, match="without a token"):
        application([str(folder)], host="0.0.0.0")
    app = application([str(folder)], host="0.0.0.0", token="secret")
    client = TestClient(app, base_url="http://10.0.0.1")
    assert client.get("/api/progress").status_code == 401
    assert client.get("/api/progress?token=secret").status_code == 200  # by way of a cookie
    app.state.session.close()


def test_nothing_to_serve_is_said(tmp_path):
    with pytest.raises(StepscopeError):
        application([str(tmp_path)])
