from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.prometheus import samples_of
from stepscope.watching.collectors import send_opentelemetry, serve_prometheus
from stepscope.watching.measures import Board

ALARM = {"event": "alarm", "kind": "slow", "stream": "rank 0"}


@pytest.fixture
def board():
    board = Board()
    board.take(ALARM)
    return board


def asked(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_prometheus_gets_the_measures_of_now(board):
    port = serve_prometheus(board, 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert [one.value for one in samples_of(answer.read().decode())] == [1]
    board.take(ALARM)
    assert [one.value for one in samples_of(asked(port, "/metrics")[1])] == [2]


def test_other_paths_and_other_names_of_the_host_get_nothing(board):
    port = serve_prometheus(board, 0)
    assert asked(port, "/")[0] == 404
    assert asked(port, "/metrics", Host="evil.example")[0] == 403
    assert asked(port, "/metrics", Host=f"localhost:{port}")[0] == 200


def test_a_client_that_says_nothing_keeps_no_one_waiting(board):
    port = serve_prometheus(board, 0)
    with socket.create_connection(("127.0.0.1", port)):
        assert asked(port, "/metrics")[0] == 200


def test_a_port_that_is_taken_is_an_error(board):
    port = serve_prometheus(board, 0)
    with pytest.raises(StepscopeError, match=f"cannot serve metrics on port {port}"):
        serve_prometheus(board, port)


@pytest.fixture
def otel_logger():
    logger = logging.getLogger("opentelemetry")
    before = logger.handlers[:], logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = before


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args):
        pass


@pytest.mark.usefixtures("otel_logger")
def test_opentelemetry_gets_the_measures(board, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.bodies = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    problems: list[str] = []
    send_opentelemetry(board, problems.append)()
    server.shutdown()
    server.server_close()
    [(path, body)] = server.bodies
    sent = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
    points = {one.name: one.sum.data_points[0] for one in sent if one.sum.data_points}
    assert (path, problems) == ("/v1/metrics", [])
    assert points["stepscope.alarms"].as_double == 1
    assert {one.key: one.value.string_value for one in points["stepscope.alarms"].attributes} == {
        "kind": "slow", "stream": "rank 0",
    }  # fmt: skip


@pytest.mark.usefixtures("otel_logger")
def test_a_collector_that_is_not_there_is_a_problem_and_no_error(board, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    problems: list[str] = []
    send_opentelemetry(board, problems.append)()
    assert problems
    assert "127.0.0.1" in problems[0] or "export" in problems[0].lower()


def test_without_the_extra_it_is_said_how_to_install_it(board, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(StepscopeError, match="--otel needs the extra otel"):
        send_opentelemetry(board, lambda _text: None)
