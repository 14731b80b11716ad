"""Access to the servers of this project: password, its file, the lines of `make up` in `.env`, check of HTTP requests.

The check concerns host name, origin and password. It protects every server that this project starts. Without it, every
user of the machine could use a server that listens on the loopback address. So could every web page that the owner
opens in a browser, because a browser sends requests to 127.0.0.1 on behalf of any page. If the host name of the page
resolves to 127.0.0.1, the page could even read the answers (docs/decisions.md).
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.settings import DATABASE, LOOPBACK, allowed_hosts, home, server_host
from rlcore.store.directory import write_text

OWN_NAMES = (LOOPBACK, "localhost", "::1")
USER = "shepherd"
# Lines that `make up` writes into the file `.env`.
BEGIN, END = "# written by make up; make down takes it away", "# end of make up"
NAMES = (
    "PREFECT_API_URL",
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)
NO_TRACKING = {"DO_NOT_TRACK": "1"}
# The block ends at the end line, or at the last variable if the user has deleted the end line.
OURS = re.compile(rf"{BEGIN}\n(?:[^\0]*?{END}\n|(?:(?:{'|'.join((*NAMES, *NO_TRACKING, DATABASE))})=.*\n)*)")


def guard(app: Any, login: str, is_open: Callable[[Any], bool], hint: str = "") -> Any:
    """Protect an ASGI application: forward only permitted requests to it.

    A request is refused with status 403 if it is addressed to a host name that does not belong to this server, or comes
    from a web page of another site. It is refused with status 401 if it does not contain the password. A websocket that
    is refused is closed before it opens.

    Args:
        app: The application to protect.
        login: `user:password` of HTTP basic authentication.
        is_open: Called with the ASGI scope of a request. Returns True if the guard must not check the password, because
            the request needs none or `app` checks it.
        hint: Sentence that is added to the answer 401 and describes where the user finds the password.

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
    """Return a function for the argument `is_open` of `guard`: True for GET and HEAD requests of the given paths.

    Use it for health checks. They need no password, because their answers only show that the server is running.
    """
    return lambda scope: scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in paths


def _refusal(headers: dict[bytes, bytes], names: Collection[str], further: Collection[str]) -> str:
    """Check host name and origin of a request; return the reason why it is refused, or "" if it is permitted.

    Args:
        headers: HTTP headers of the request.
        names: host names of this server.
        further: host names of SHEPHERD_ALLOWED_HOSTS; web pages of these hosts may use the server.

    Returns:
        The reason as a sentence, or "".
    """
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


def client_variables(prefect: str, mlflow: str, password: str) -> dict[str, str]:
    """Return environment variables that make clients connect to the Prefect and MLflow servers of `make up`.

    DO_NOT_TRACK keeps the command `prefect` from sending usage data and from writing a device id to the home folder.

    Args:
        prefect: URL of the Prefect server.
        mlflow: URL of the MLflow server.
        password: password of both servers.

    Returns:
        Name -> value.
    """
    values = (f"{prefect}/api", f"{USER}:{password}", mlflow, USER, password)
    return dict(zip(NAMES, values, strict=True)) | NO_TRACKING


def keep_password(path: Path) -> str:
    """Return the password that is stored in a file. If the file does not exist, create it with a new password.

    The servers keep this password after a restart, so a terminal that has loaded `.env` earlier can still use them.
    """
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def write_dotenv(variables: Mapping[str, str]) -> None:
    """Write environment variables into the file `.env`, between two marker lines. Other lines are not changed.

    If `variables` is empty, the marker lines and all lines between them are removed.
    """
    path = home() / ".env"
    text = path.read_text() if path.exists() else ""
    before, after = [*OURS.split(text, maxsplit=1), ""][:2]
    block = "".join(f"{name}={value}\n" for name, value in variables.items())
    text = before + ("\n" if before and not before.endswith("\n") else "")
    text += (f"{BEGIN}\n{block}{END}\n" if block else "") + after
    if text:
        _write_private(path, text)
    else:
        path.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    others = os.umask(0o077)
    try:
        write_text(path, text)
    finally:
        os.umask(others)
