"""Scrapes the metrics of a server on this machine (Prometheus text), into a file of the recording.

Only addresses of this machine are asked: no proxy is used and no redirection followed.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from stepscope.core.errors import StepscopeError
from stepscope.core.prometheus import samples_of, scrape_mark
from stepscope.record.system import meta

if TYPE_CHECKING:
    from pathlib import Path

#: The scrapes of a recording, each a member of the gzip file: what a kill leaves can be read up to the last one.
NAME = "metrics.prom.gz"
_TIMEOUT_S, _WHOLE_S, _MOST_BYTES = 2.0, 5.0, 1 << 24
#: Seconds between scrapes at first; of long recordings each scrape is an 1800th of the time so far after the last.
_EVERY_S, _SCRAPES = 2.0, 1800


class MetricsUrl(NamedTuple):
    """The address of a server's metrics, and as the user wrote it. `more` are further addresses of the same name."""

    host: str
    port: int
    path: str
    text: str
    more: tuple[str, ...] = ()

    @staticmethod
    def of(text: str) -> MetricsUrl:
        """The address in a text such as http://localhost:8000/metrics. Raises StepscopeError (not on this machine)."""
        hint = "name one as in http://localhost:8000/metrics"
        try:
            parts = urlsplit(text if "//" in text else f"//{text}", "http")
            host, port = parts.hostname or "", parts.port or 80
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (ValueError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StepscopeError(f"{text} is no address of metrics: {reason}", hint) from None
        if parts.scheme != "http" or not host:
            raise StepscopeError(f"{text} is no address of metrics: it does not begin with http://", hint)
        local = [str(one[4][0]) for one in known if ip_address(str(one[4][0]).partition("%")[0]).is_loopback]
        if not local:
            hint = f"let its port appear here: ssh -L {port}:localhost:{port} HOST"
            raise StepscopeError(f"{text} is not on this machine: only those of this machine are scraped", hint)
        query = f"?{parts.query}" if parts.query else ""
        first, *more = dict.fromkeys(local)
        return MetricsUrl(first, port, (parts.path or "/metrics") + query, text, tuple(more))


def scrape(url: MetricsUrl) -> str:
    """The metrics now. Raises StepscopeError (no answer within some seconds, another one than metrics)."""
    from http.client import HTTPException

    hint = "does the server run, and with metrics on? SGLang needs --enable-metrics"
    try:
        status, reason, text = _get(url)
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StepscopeError(f"{url.text} does not answer: {why}", hint) from None
    if status != 200:
        raise StepscopeError(f"{url.text} answers {status} {reason}", hint)
    if not samples_of(text):
        raise StepscopeError(f"{url.text} answers without a sample of a metric", hint)
    return text


def _get(url: MetricsUrl) -> tuple[int, str, str]:
    """Status, reason and text of the answer. Raises OSError or HTTPException."""
    from http.client import HTTPConnection

    connection = HTTPConnection(url.host, url.port)
    sock = connection.sock = _connected(url)
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    # The timeout of the socket is that of a packet: a server could send a byte a second for ever.
    timer = threading.Timer(_WHOLE_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", url.path, headers={"Host": f"localhost:{url.port}", "Accept": "text/plain"})
        response = connection.getresponse()
        text = response.read(_MOST_BYTES).decode("utf-8", "replace")
    finally:
        timer.cancel()
        connection.close()
        sock.close()
        if is_late.is_set():
            raise TimeoutError(f"it takes longer than {_WHOLE_S:g} s")
    return response.status, response.reason, text


def _connected(url: MetricsUrl) -> socket.socket:
    """A connection to the first address of the server that accepts one. Raises OSError."""
    *hosts, last = (url.host, *url.more)
    for host in hosts:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((host, url.port), _TIMEOUT_S)
    return socket.create_connection((last, url.port), _TIMEOUT_S)


class MetricsScraper:
    """Scrapes while a job runs, from a thread of its own, until `end`."""

    def __init__(self, url: MetricsUrl, folder: Path) -> None:
        self._url, self._path = url, folder / NAME
        self._over = threading.Event()
        self._n, self._n_missed, self._error = 0, 0, ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> list[dict[str, Any]]:
        """Scrape no longer. Returns issues for meta.json: what was missed, and why."""
        self._over.set()
        self._thread.join()
        if not self._n:
            return [meta.issue("metrics_missing", f"no metrics were recorded: {self._error}")]
        if self._n_missed:
            return [meta.issue("metrics_missed", f"scrapes failed: {self._error}", count=self._n_missed)]
        return []

    def _run(self) -> None:
        began, n_failed, error = time.monotonic(), 0, ""
        while True:
            is_last = self._over.is_set()
            try:
                at = time.time_ns()
                text = scrape(self._url)
                with self._path.open("ab") as file:
                    file.write(gzip.compress((scrape_mark(at) + text.rstrip("\n") + "\n").encode()))
            except StepscopeError as problem:
                n_failed, error = n_failed + 1, problem.message
            except OSError as problem:
                n_failed, error = n_failed + 1, f"cannot write {self._path}: {problem.strerror}"
            else:  # those before the server began, or after it ended, are not missing
                self._n_missed += n_failed if self._n else 0
                self._error, error = error or self._error, ""
                self._n, n_failed = self._n + 1, 0
            if not self._n:
                self._error = error
            if is_last:
                return
            self._over.wait(max(_EVERY_S, (time.monotonic() - began) / _SCRAPES))
