"""Requests to an ASGI application without a server, and a list of all its routes."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from typing import Any

WEBSOCKET = "WEBSOCKET"


def basic(login: str) -> tuple[bytes, bytes]:
    """The Authorization header for `user:password`."""
    return b"authorization", b"Basic " + base64.b64encode(login.encode())


def routes(app: Any) -> set[tuple[str, str]]:
    """Method and path of each route of a FastAPI application, also of mounted ones; "1" for each parameter."""
    return {(method, re.sub(r"{[^}]*}|<[^>]*>", "1", path) or "/") for method, path in _below(app.routes)}


def _below(found: Any, before: str = "") -> Iterator[tuple[str, str]]:
    for route in found:
        router = getattr(route, "original_router", None)  # FastAPI since 0.137
        path = before + getattr(route, "path", "")
        if router is not None:
            yield from _below(router.routes, before)
        elif inner := getattr(route, "routes", None):
            yield from _below(inner, path)
        elif "WebSocket" in type(route).__name__:
            yield WEBSOCKET, path
        else:
            for method in getattr(route, "methods", None) or ("GET", "POST", "PUT", "DELETE"):
                yield method, path
        for rule in _rules_of_flask(route):
            for method in rule.methods or ():
                yield method, f"{before}{rule.rule}"


def _rules_of_flask(route: Any) -> list[Any]:
    """The rules of a Flask application that is mounted."""
    flask: Any = getattr(getattr(route, "app", None), "app", None)
    return list(flask.url_map.iter_rules()) if hasattr(flask, "url_map") else []


def ask(app: Any, method: str, path: str, *headers: tuple[bytes, bytes], host: bytes = b"127.0.0.1:80") -> Any:
    """Status and headers of the answer to a request; for a websocket, whether it accepts the connection."""
    return asyncio.run(_ask(app, method, path, [(b"host", host), *headers]))


async def _ask(app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> Any:
    http = method != WEBSOCKET
    incoming: list[Any] = [{"type": "http.request", "body": b"{}"}]
    if not http:
        token = json.dumps({"type": "auth", "token": "guessed"})
        incoming = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": token}]
        headers = [*headers, (b"sec-websocket-protocol", b"prefect")]
    sent: list[Any] = []

    async def receive() -> Any:
        return (
            incoming.pop(0)
            if incoming
            else {"type": "http.disconnect" if http else "websocket.disconnect", "code": 1000}
        )

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http" if http else "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1"}
    scope |= {"method": method} if http else {"subprotocols": ["prefect"]}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"scheme": "http" if http else "ws", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    if http:
        return sent[0]["status"], dict(sent[0]["headers"])
    return any("auth_success" in message.get("text", "") for message in sent) or sent[-1]["type"] != "websocket.close"
