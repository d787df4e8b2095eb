"""Events go to every output; an output that fails is reported once, and the others go on."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.watching.outputs import Outputs

ALARM = {"event": "alarm", "text": "slow", "kind": "slow"}


def test_events_go_to_the_log_and_alarms_to_command_and_webhook(tmp_path):
    bodies, lines = [], []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        outputs = Outputs(lines.append, tmp_path / "log", f"cat > {tmp_path}/alarm", url)
        outputs.send({"event": "minute", "text": "fine"})
        outputs.send(ALARM)
        outputs.close()
        thread.join()
    assert [line[9:] for line in lines] == ["fine", "slow"]
    assert [json.loads(line)["text"] for line in (tmp_path / "log").read_text().splitlines()] == ["fine", "slow"]
    assert json.loads((tmp_path / "alarm").read_text()) == bodies[0]
    assert bodies[0].items() >= ALARM.items()


def test_what_fails_is_reported_once(tmp_path):
    lines = []
    outputs = Outputs(lines.append, tmp_path / "no" / "log", "exit 3", "http://127.0.0.1:9/")
    for _ in range(3):
        outputs.send(ALARM)
        outputs.close()
    problems = [line[9:] for line in lines if "failed" in line]
    assert sorted(problem.split(" failed")[0] for problem in problems) == ["--on-alarm", "--webhook", "the log"]


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(StepscopeError, match="no web address"):
        Outputs(print, webhook="file:///etc/passwd")
