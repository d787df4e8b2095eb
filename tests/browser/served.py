"""Serves traces from this process, for a browser."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from stepscope.web.app import application


@contextmanager
def serve(*paths):
    """Address of the page of these traces, served by a thread."""
    app = application([str(path) for path in paths])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", http="h11", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        app.state.session.close()
