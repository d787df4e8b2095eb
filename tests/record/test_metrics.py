from __future__ import annotations

import gzip
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record import metrics
from stepscope.record.metrics import NAME, MetricsScraper, MetricsUrl, scrape


@pytest.fixture
def server():
    """A server of metrics that answers with what is in its list, the last one again and again."""
    answers = [(200, b'n{a="b"} 1\n')]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("Location", "http://example.com")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    running = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    yield running.server_port, answers
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize("text", ["http://192.0.2.1/metrics", "https://localhost", "http://", "http://localhost:x"])
def test_only_plain_addresses_of_this_machine_are_scraped(text):
    with pytest.raises(StepscopeError):
        MetricsUrl.of(text)


def test_the_path_is_metrics_if_none_is_named():
    assert MetricsUrl.of("127.0.0.1:8000")[:3] == ("127.0.0.1", 8000, "/metrics")
    assert MetricsUrl.of("http://127.0.0.1:8000/m?x=1").path == "/m?x=1"


def test_errors_say_what_the_server_answers(server):
    port, answers = server
    url = MetricsUrl.of(f"127.0.0.1:{port}")
    assert scrape(url) == 'n{a="b"} 1\n'
    for answer, said in (((302, b""), "302"), ((200, b"<html>"), "without a sample")):
        answers[:] = [answer]
        with pytest.raises(StepscopeError, match=said):
            scrape(url)


def test_scrapes_follow_each_other_in_one_file_with_their_times(server, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_EVERY_S", 0.01)
    port, answers = server
    answers[:] = [(503, b""), (200, b"n 1"), (503, b""), (200, b"n 2\n"), (200, b"n 3\n")]
    before = time.time_ns()
    scraper = MetricsScraper(MetricsUrl.of(f"127.0.0.1:{port}"), tmp_path)
    while len(answers) > 1:
        time.sleep(0.005)
    (issue,) = scraper.end()
    assert (issue["code"], issue["count"]) == ("metrics_missed", 1)  # that before the server began is none
    lines = gzip.decompress((tmp_path / NAME).read_bytes()).decode().splitlines()
    assert lines[1:6:2] == ["n 1", "n 2", "n 3"]
    assert before <= int(lines[0].removeprefix("# scraped ")) <= int(lines[2].removeprefix("# scraped "))


def test_a_server_that_never_answers_is_an_issue(tmp_path):
    (issue,) = MetricsScraper(MetricsUrl.of("127.0.0.1:9"), tmp_path).end()
    assert issue["code"] == "metrics_missing"
    assert "127.0.0.1:9 does not answer" in issue["example"]
    assert not (tmp_path / NAME).exists()


def test_a_server_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr(metrics, "_WHOLE_S", 0.1)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
                while not over.wait(0.02):
                    connection.sendall(b"n")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(StepscopeError, match="it takes longer than"):
            scrape(MetricsUrl.of(f"127.0.0.1:{server.getsockname()[1]}"))
        over.set()
        thread.join()


def test_a_server_that_listens_on_one_address_of_its_name_is_found(server):
    port, _ = server
    url = MetricsUrl("::1", port, "/metrics", "localhost", ("127.0.0.1",))
    assert scrape(url) == 'n{a="b"} 1\n'
