"""What scripts ask for: windows, details, sums, hits; and what is refused."""

from __future__ import annotations

import pytest
from windows_of import unpacked


def test_progress_names_the_inputs(client):
    assert client.get("/api/progress").json() == {"reading": [], "inputs": ["rank0", "rank1"]}


def test_a_window_is_binary(client):
    layout = client.get("/api/trace/1/layout").json()
    tracks = ",".join(str(track["id"]) for group in layout["groups"] for track in group["tracks"])
    answer = client.get(f"/api/trace/1/window?from={layout['first_ns']}&to={layout['last_ns']}&px=4000&tracks={tracks}")
    assert answer.headers["content-type"] == "application/octet-stream"
    header, arrays = unpacked(answer.content)
    assert header["pixels"] == 4000
    assert len(arrays["id"]) == layout["n_spans"]


def test_pixels_are_bounded(client):
    header, _ = unpacked(client.get("/api/trace/0/window?from=0&to=10&px=999999999").content)
    assert header["pixels"] == 8192
    header, _ = unpacked(client.get("/api/trace/0/window?from=0&to=10&px=1").content)
    assert header["pixels"] == 16


def test_details_sums_and_hits(client):
    assert client.get("/api/trace/0/span/0").json()["name"]
    sums = client.get("/api/trace/0/statistics?from=0&to=999999999").json()
    assert sums["n_spans"] > 5
    assert client.get("/api/trace/0/statistics?from=0&to=999999999&tracks=0").json()["n_spans"] < sums["n_spans"]
    assert client.get("/api/trace/0/search?q=aten").json()["count"] == 12
    assert client.get("/api/trace/0/search?q=aten&exact=1").json()["count"] == 0


@pytest.mark.parametrize(
    "call",
    [
        "window?from=5&to=5",
        "window?from=9&to=5",
        "window?to=5",
        "window?from=x&to=5",
        "window?from=1e3&to=5",
        "window?from=0&to=9&tracks=a",
        "window?from=0&to=9&tracks=-1",
        f"window?from=0&to={10**30}",
        "window?from=0&to=9&px=٣",
        "search",
        "search?q=",
        "statistics?from=3&to=1",
    ],
)
def test_calls_that_make_no_sense_are_refused(client, call):
    answer = client.get(f"/api/trace/0/{call}")
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize("call", ["/api/trace/2/layout", "/api/trace/0/span/99999999"])
def test_what_is_not_there_is_refused(client, call):
    assert client.get(call).status_code in (400, 404)


def test_the_farthest_window_is_answered(client):
    most = 10**18 - 1
    assert client.get(f"/api/trace/0/window?from=-{most}&to={most}&tracks=0,1,2").status_code == 200
