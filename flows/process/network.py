"""Ask whether a server answers; open sockets that children of this process listen on."""

from __future__ import annotations

import base64
import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_server(uri: str) -> bool:
    """Tell whether MLflow's store is behind a server, and not a file of this machine."""
    return uri.startswith(("http://", "https://"))


def unreachable(url: str, login: str = "", any_answer: bool = False) -> str | None:
    """Reason why a server does not answer, or None where it does; with `any_answer` a refusal is an answer as well.

    `url` is that of its health, and `login` "user:password".
    """
    header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=5):
            return None
    except http.client.HTTPException:
        return "what answers speaks no HTTP"
    except (OSError, ValueError) as error:
        if any_answer and isinstance(error, urllib.error.HTTPError):
            return None
        return str(getattr(error, "reason", error)) or type(error).__name__


@contextmanager
def listen(address: Path) -> Iterator[socket.socket]:
    """A UNIX socket for a child to inherit, to which this user alone can write."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))  # in a folder that nobody else can enter
        address.chmod(0o600)
        server.listen(128)
        yield server


@contextmanager
def survive_outages() -> Iterator[None]:
    """Leave the `with` where Prefect's server is away or fails: Prefect's loops try again, but not for long."""
    import httpx  # 50 ms; who asks this has imported Prefect

    try:
        yield
    except httpx.HTTPError as error:
        if not is_outage(error):
            raise


def is_outage(error: Exception) -> bool:
    """Tell whether an error says that a server is away or fails, and not that it refuses."""
    import httpx  # as above

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)
