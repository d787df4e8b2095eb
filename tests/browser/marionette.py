"""Drives Firefox by Marionette, the protocol that it speaks itself.

Protocol: https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html. A message is its length, a colon,
and a JSON array. Playwright drives only a Firefox of its own, which no distribution has.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from itertools import count

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
PATIENCE_S = 60.0
_PREFERENCES = {
    "marionette.port": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "browser.shell.checkDefaultBrowser": False,
}
#: Errors of pages' scripts, which Firefox collects for its console.
_ERRORS = """Services.console.getMessageArray().filter(one => one instanceof Ci.nsIScriptError)
    .filter(one => one.sourceName.startsWith("http") && !(one.flags & one.warningFlag)).map(String)"""


class Firefox:
    """A window of Firefox, which runs without a screen."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._file, self._numbers = self._socket.makefile("rb"), count(1)
        self._message()
        self.call("WebDriver:NewSession")
        self.call("WebDriver:SetWindowRect", width=1280, height=900)

    def call(self, command, **parameters):
        """What the command returns."""
        text = json.dumps([0, next(self._numbers), command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self._message()
        assert error is None, f"{command}: {error['message']}"
        return result

    def evaluate(self, script, *values):
        """The value of a JavaScript expression; `values` are its arguments."""
        return self.call("WebDriver:ExecuteScript", script=f"return {script}", args=list(values))["value"]

    def wait_for(self, expression):
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def open(self, address):
        """Load the address and wait until its content is there."""
        self.call("WebDriver:Navigate", url=address)
        self.wait_for("!!document.querySelector('main:not(:has([data-waiting]))')")
        if "/timeline" in address:
            self.wait_for("!!document.querySelector('html[data-timeline=\"ready\"][data-windows]')")

    def press(self, *keys):
        """Press keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def errors(self, *, forget=False):
        """What went wrong in scripts of pages since the last ones were forgotten."""
        self.call("Marionette:SetContext", value="chrome")
        errors = self.evaluate(_ERRORS)
        if forget:
            self.evaluate("Services.console.reset()")
        self.call("Marionette:SetContext", value="content")
        return errors

    def close(self):
        """Let go of the connection."""
        self._file.close()
        self._socket.close()

    def _message(self):
        length = b""
        while (byte := self._file.read(1)) != b":":
            assert byte, "Firefox has gone"
            length += byte
        return json.loads(self._file.read(int(length)))


@contextmanager
def started(profile):
    """A Firefox whose profile is in this empty folder."""
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in _PREFERENCES.items())
    profile.joinpath("user.js").write_text("".join(lines), encoding="utf-8")
    command = [
        FIREFOX,
        "--headless",
        "--no-remote",
        "--marionette",
        "--remote-allow-system-access",
        "--profile",
        str(profile),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    port = profile / "MarionetteActivePort"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (port.exists() and port.read_text()):
            assert process.poll() is None, "Firefox did not start"
            assert time.monotonic() < deadline, "Firefox did not open its port"
            time.sleep(0.1)
        firefox = Firefox(int(port.read_text()))
        yield firefox
        firefox.close()
    finally:
        process.terminate()
        process.wait()
