"""Who may ask: the guard by itself, without any page inside it."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from stepscope.web.guard import Guard, Rules, is_loopback, rules_for


async def inner_app(scope, receive, send):  # noqa: ARG001  the ASGI signature
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["query_string"]})


def ask(rules, path="/", base="http://127.0.0.1:8000", method="GET", **more):
    return TestClient(Guard(inner_app, rules), base_url=base, follow_redirects=False).request(method, path, **more)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "localhost:9", "LOCALHOST:9"])
def test_this_machine_may_ask(host):
    assert ask(Rules(), headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "localhost.evil", "a@b", "::1"]
)
def test_other_host_names_are_refused(host):
    answer = ask(Rules(), headers={"host": host})
    assert answer.status_code == 421
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "file://", "http://[", ""])
def test_requests_of_other_sites_are_refused(origin):
    assert ask(Rules(), headers={"origin": origin}).status_code == 403


def test_our_own_origin_may_ask():
    assert ask(Rules(), headers={"origin": "http://127.0.0.1:8000"}).status_code == 200


def test_a_script_of_another_site_is_refused_but_a_link_there_works():
    assert ask(Rules(), headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403
    assert ask(Rules(), headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(method):
    assert ask(Rules(), method=method).status_code == 405


def test_long_addresses_and_bodies_are_refused():
    assert ask(Rules(), "/?q=" + "x" * 9000).status_code == 414
    assert ask(Rules(), content=b"body").status_code == 413


def test_every_answer_has_the_headers():
    headers = ask(Rules()).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'self'" in ask(Rules(framed=True)).headers["content-security-policy"]


TOKEN = "right-one"


def test_without_the_token_nobody_gets_in():
    rules = Rules(token=TOKEN)
    assert ask(rules).status_code == 401
    assert ask(rules, "/?token=wrong").status_code == 401
    assert ask(rules, "/?token=").status_code == 401
    assert ask(rules, "/?token=%FF%FE").status_code == 401
    assert ask(rules, headers={"cookie": "stepscope=wrong"}).status_code == 401
    assert ask(rules, headers={"cookie": "stepscope=\xe9; ;;=".encode("latin-1")}).status_code == 401


def test_the_token_is_swapped_for_a_cookie_once_and_leaves_the_address():
    rules = Rules(token=TOKEN)
    first = ask(rules, f"/tables?a=1&token={TOKEN}&b=%3C")
    assert first.status_code == 303
    assert first.headers["location"] == "/tables?a=1&b=%3C"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(rules, headers={"cookie": cookie.partition(";")[0]}).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\\\evil.example/", "///evil.example/"])
def test_the_way_on_never_leads_to_another_host(path, completed):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": f"token={TOKEN}".encode(),
        "headers": [(b"host", b"127.0.0.1")],
    }
    completed(Guard(inner_app, Rules(token=TOKEN))(scope, None, send))
    assert dict(sent[0]["headers"])[b"location"] == b"/evil.example/"


def test_websockets_are_closed(completed):
    sent = []

    async def send(message):
        sent.append(message)

    completed(Guard(inner_app, Rules())({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("example.org", False),
    ],
)
def test_loopback_is_told_from_the_rest(host, expected):
    assert is_loopback(host) == expected


def test_beyond_loopback_addresses_may_be_used_but_no_foreign_names():
    rules = rules_for("0.0.0.0", TOKEN)
    assert ask(rules, headers={"host": "10.1.2.3:80"}).status_code == 401
    assert ask(rules, headers={"host": "evil.example"}).status_code == 421
    assert rules_for("127.0.0.1", None) == Rules()


def test_programs_may_post_questions_only_where_the_rules_say_so():
    assert ask(Rules(takes_posts=True), method="POST", content=b"{}").status_code == 200
    assert ask(Rules(), method="POST", content=b"{}").status_code == 405
    assert ask(Rules(takes_posts=True), method="DELETE").status_code == 405


def test_a_program_sends_the_token_in_a_header():
    rules = Rules(token="abc", takes_posts=True)
    assert ask(rules, method="POST", headers={"authorization": "Bearer abc"}).status_code == 200
    assert ask(rules, method="POST", headers={"authorization": "Bearer ab"}).status_code == 401
    assert ask(rules, method="POST").status_code == 401
