"""Access check of every request to a server of this project: host name, origin and password.

`guard` protects every server that this project starts on a port. Without it, every local user could use a server that
listens on the loopback address. Every web page that the owner opens could use it, too: a browser sends requests to
127.0.0.1 for any page. A page with a host name that resolves to 127.0.0.1 could even read the answers
(docs/decisions.md).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from flows.settings import LOOPBACK, allowed_hosts, server_host

OWN_NAMES = (LOOPBACK, "localhost", "::1")


def guard(app: Any, login: str, is_open: Callable[[Any], bool], hint: str = "") -> Any:
    """Protect an ASGI application: forward only permitted requests to it.

    A request is refused with 403 if its host name is not one of this server, or if it comes from a page of another
    origin. It is refused with 401 if it does not carry the password. A refused websocket is closed before it opens.

    Args:
        app: The application to protect.
        login: `user:password` of HTTP's basic authentication.
        is_open: Returns True for the scope of a request that needs no password, or if `app` checks its password itself.
        hint: Sentence in the answer 401 that describes where the user finds the password.

    Returns:
        The protected application.
    """
    expected = b"Basic " + base64.b64encode(login.encode())
    further = allowed_hosts()
    names = {*OWN_NAMES, server_host(), *further}

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            headers = dict(scope["headers"])
            if refusal := _refusal(headers, names, further):
                await _refuse(scope, send, 403, refusal)
                return
            if not is_open(scope) and not hmac.compare_digest(headers.get(b"authorization", b""), expected):
                await _refuse(scope, send, 401, f"The password is wrong or missing. {hint}".strip())
                return
        await app(scope, receive, send)

    return guarded


def is_health(*paths: str) -> Callable[[Any], bool]:
    """Return a function for `is_open` that is True for GET and HEAD requests of these paths.

    The answers of these paths show only that the server is running.
    """
    return lambda scope: scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in paths


def _refusal(headers: dict[bytes, bytes], names: Collection[str], further: Collection[str]) -> str:
    """Return the reason why a request is refused regardless of its password. Return "" if it is permitted."""
    host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
    if _name_of(f"//{host}") not in names:
        return "Host is not a name of this server; SHEPHERD_ALLOWED_HOSTS can list further names."
    if origin and origin.partition("://")[2] != host and _name_of(origin) not in further:
        return "Origin is another site; pages of other sites may not use this server."
    return ""


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _refuse(scope: Any, send: Any, status: int, text: str) -> None:
    if scope["type"] == "websocket":  # closed before it is accepted: the server answers the handshake with 403
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="shepherd"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
