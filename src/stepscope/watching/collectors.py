"""Hands the measures of a watch to those who collect them: Prometheus asks here, OpenTelemetry is sent to."""

from __future__ import annotations

import logging
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.watching.measures import Board, exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_S, _LAST_MS = 5.0, 5000
_LOCAL = ("127.0.0.1", "localhost")


def check_port(port: int) -> None:
    """Raise StepscopeError if metrics cannot be served on this port."""
    _listen(Board(), port).server_close()


def serve_prometheus(board: Board, port: int) -> int:
    """Answer http://127.0.0.1:PORT/metrics until the process ends. Port 0 is any that is free; returns the port.

    Only programs of this machine are answered. Raises StepscopeError (the port is taken).
    """
    server = _listen(board, port)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def _listen(board: Board, port: int) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((_LOCAL[0], port), partial(_Handler, board))
    except OSError as error:
        hint = "choose another port, or 0 for any that is free"
        raise StepscopeError(f"cannot serve metrics on port {port}: {error.strerror}", hint) from None


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_S

    def __init__(self, board: Board, *args: Any) -> None:
        self._board = board
        super().__init__(*args)

    def do_GET(self) -> None:
        # A page in the user's browser may ask under another name that leads here; only ours are answered.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _LOCAL:
            self._answer(HTTPStatus.FORBIDDEN, "ask as 127.0.0.1 or localhost\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "metrics are at /metrics\n")
        else:
            self._answer(HTTPStatus.OK, exposition(self._board.measures()))

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Requests are no events of the watch."""


def check_opentelemetry() -> None:
    """Raise StepscopeError if OpenTelemetry's libraries are not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics.export  # noqa: F401
    except ImportError:
        raise StepscopeError("--otel needs the extra otel", "install it: pip install 'stepscope[otel]'") from None


def send_opentelemetry(board: Board, problem: Callable[[str], None]) -> Callable[[], None]:
    """Send the measures as OpenTelemetry's standard variables say (`OTEL_EXPORTER_OTLP_ENDPOINT` and others).

    `problem` gets what goes wrong while sending, a text each time. Returns what ends it, with a last sending.
    Raises StepscopeError (the extra `otel` is not installed, the variables are wrong).
    """
    check_opentelemetry()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.addHandler(_Problems(problem))
    try:
        provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    except ValueError as error:
        raise StepscopeError(f"OpenTelemetry cannot start: {error}", "check the variables OTEL_…") from None
    meter = provider.get_meter("stepscope")

    def observe(name: str, _options: CallbackOptions) -> Iterable[Observation]:
        measure = next(one for one in board.measures() if one.name == name)
        return [Observation(value, dict(labels)) for labels, value in measure.values]

    for one in board.measures():
        create = meter.create_observable_counter if one.kind == "counter" else meter.create_observable_gauge
        create(one.name, [partial(observe, one.name)], unit=one.unit, description=one.text)
    return partial(provider.shutdown, _LAST_MS)


class _Problems(logging.Handler):
    """Hands warnings of OpenTelemetry's library on."""

    def __init__(self, problem: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._problem = problem

    def emit(self, record: logging.LogRecord) -> None:
        self._problem(record.getMessage())
