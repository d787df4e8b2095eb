"""Refuses requests before any page is made: wrong host names, other sites, no token, too much input."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LONGEST_URL = 8_192
_COOKIE = "stepscope"
_PARAMETER = "token"
#: Plotly makes an empty style element and fills it through the DOM: the hash is that of the empty text.
_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
_HEADERS = (
    ("content-security-policy", "default-src 'none'; script-src 'self'; style-src 'self' " + _EMPTY_STYLE + "; "
     "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
     "frame-ancestors {ancestors}"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask.

    `hosts`: names that requests may call this server by; `any_address`: IP addresses too; `any_host`: all names,
    as the server around this app has checked them already. `token` is demanded of everyone if set. `framed` lets a page
    of the same origin show ours (TensorBoard). `takes_posts` lets programs send questions in the body of a POST.
    """

    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "::1"})
    any_address: bool = False
    any_host: bool = False
    token: str | None = field(default=None, repr=False)
    framed: bool = False
    takes_posts: bool = False


def is_loopback(host: str) -> bool:
    """Whether a server bound to that host can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def rules_for(host: str, token: str | None) -> Rules:
    """The rules for a server bound to that host: beyond loopback also this machine's own names and addresses."""
    if is_loopback(host):
        return Rules(token=token)
    own = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return Rules(frozenset(own), any_address=True, token=token)


class Guard:
    """ASGI middleware: answers the requests that the rules refuse, and adds our headers to all other answers."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no other protocol is supported
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        moved = self._admit(scope, headers)
        if moved is not None:
            await _answer(send, *moved)
            return
        await self._app(scope, receive, self._with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and message of the first check that the request fails; None if it passes all."""
        host, origin = headers.get("host", ""), headers.get("origin")
        is_cross_site = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
        length = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        is_question = self._rules.takes_posts and scope["method"] == "POST"
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        checks = (
            (not self._knows(host), 421, "This server does not answer to that host name."),
            (origin is not None and _netloc(origin) != host.lower(), 403, "Requests from other sites are refused."),
            (is_cross_site, 403, "Requests from other sites are refused."),
            (
                scope["method"] not in ("GET", "HEAD") and not is_question,
                405,
                "Nothing can be changed here: only GET and HEAD work.",
            ),
            (length > _LONGEST_URL, 414, "The address is too long."),
            (has_body and not is_question, 413, "Requests have no body here."),
        )
        return next(((status, text) for wrong, status, text in checks if wrong), None)

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit("//" + host).hostname
        except ValueError:
            return False
        if name is None:
            return False
        if self._rules.any_host or name in self._rules.hosts:
            return True
        if not self._rules.any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _admit(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """None if the request may pass; else the refusal, or the way to the same address without its token."""
        token = self._rules.token
        given = headers.get("authorization", "").removeprefix("Bearer "), _cookie(headers.get("cookie", ""))
        if token is None or any(_same(one, token) for one in given):
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        in_address = next((value for name, value in pairs if name == _PARAMETER), "")
        if not _same(in_address, token):
            return 401, "A token is needed: open the address that stepscope printed when it started.", []
        rest = urlencode([(name, value) for name, value in pairs if name != _PARAMETER])
        path = (scope.get("raw_path") or scope["path"].encode()).split(b"?")[0]
        target = b"/" + path.lstrip(b"/\\") + (b"?" + rest.encode() if rest else b"")
        cookie = f"{_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict".encode()
        return 303, "", [(b"location", target), (b"set-cookie", cookie)]

    def _with_headers(self, send: Send) -> Send:
        ancestors = "'self'" if self._rules.framed else "'none'"
        ours = [(k.encode(), v.replace("{ancestors}", ancestors).encode()) for k, v in _HEADERS]

        async def sender(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *ours]}
            await send(message)

        return sender


def _netloc(origin: str) -> str:
    """Host and port of an Origin header; '' if it has none, as in `null`."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in ("http", "https") else ""


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _cookie(header: str) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(header)
    except CookieError:
        return ""
    morsel = jar.get(_COOKIE)
    return "" if morsel is None else morsel.value


async def _answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = text.encode()
    own = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()),
           (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": [*own, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})
