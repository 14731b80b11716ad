"""Checks of servers (address, health check, outage), and sockets that child processes inherit."""

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
    """Send a request to a server; return the reason why it does not answer, or None if it answers.

    Args:
        url: address of the server's health check.
        login: `user:password` for HTTP basic authentication; "" = none.
        any_answer: True accepts an HTTP error (status 4xx or 5xx) as an answer.

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
    """Context manager that opens a listening UNIX socket, for a child process to inherit.

    Only processes of this user can connect to it.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))  # the folder must be private: until the next line others could connect
        address.chmod(0o600)
        server.listen(128)
        yield server


@contextmanager
def survive_outages() -> Iterator[None]:
    """Context manager that suppresses errors caused by an outage of the Prefect server; its body ends at the error.

    Loops that poll the server use it, because Prefect's client gives up after a few retries.
    """
    import httpx  # takes 50 ms, but callers have imported Prefect already

    try:
        yield
    except httpx.HTTPError as error:
        if not is_outage(error):
            raise


def is_outage(error: Exception) -> bool:
    """Return True if an httpx error means that a server is unreachable or has failed (status 5xx).

    Return False if the server answered and refused the request (status 4xx).
    """
    import httpx  # takes 50 ms, but callers have imported Prefect already

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)
