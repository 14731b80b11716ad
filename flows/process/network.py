"""Checks that a server answers, and sockets that child processes inherit."""

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
    """Return True if the URI of an MLflow store is the address of a server, not of a file on this machine."""
    return uri.startswith(("http://", "https://"))


def unreachable(url: str, login: str = "", any_answer: bool = False) -> str | None:
    """Return the reason why a server does not answer, or None if it answers.

    Args:
        url: address of its health check.
        login: `user:password` for basic authentication.
        any_answer: an HTTP error counts as an answer too.

    Returns:
        The reason, or None.
    """
    header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=5):
            return None
    except http.client.HTTPException:
        return "the answer is not HTTP"
    except (OSError, ValueError) as error:
        if any_answer and isinstance(error, urllib.error.HTTPError):
            return None
        return str(getattr(error, "reason", error)) or type(error).__name__


@contextmanager
def listen(address: Path) -> Iterator[socket.socket]:
    """Context manager that opens a UNIX socket for a child process to inherit. Only this user can write to it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))  # the folder must be private: until the next line others could connect
        address.chmod(0o600)
        server.listen(128)
        yield server


@contextmanager
def survive_outages() -> Iterator[None]:
    """Context manager that suppresses errors caused by an outage of Prefect's server.

    It is needed because Prefect's own loops retry only a few times.
    """
    import httpx  # takes 50 ms, but callers have imported Prefect already

    try:
        yield
    except httpx.HTTPError as error:
        if not is_outage(error):
            raise


def is_outage(error: Exception) -> bool:
    """Return True if an error means that a server is unreachable or failed, not that it refused the request."""
    import httpx  # takes 50 ms, but callers have imported Prefect already

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)
