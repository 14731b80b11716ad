"""Whether a server answers."""

from __future__ import annotations

import base64
import http.client
import os
import urllib.error
import urllib.request

from rlcore.errors import UserError


def check_servers() -> None:
    """Ask the Prefect server named by PREFECT_API_URL, if any, whether it is there and lets us in.

    Raises:
        UserError: it does not answer, or wants another password; training would otherwise fail minutes later, with a
            traceback.
    """
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url:
        return
    if reason := unreachable(f"{url}/health"):
        raise UserError(
            f"PREFECT_API_URL={url}: no Prefect server answers there ({reason}); "
            "start it, or unset the variable to run without a server"
        )
    login = os.environ.get("PREFECT_API_AUTH_STRING", "")
    if not os.environ.get("PREFECT_API_KEY") and unreachable(f"{url}/admin/version", login) == "Unauthorized":
        raise UserError(
            f"PREFECT_API_URL={url}: the server there refuses PREFECT_API_AUTH_STRING; of `make up`'s it is in .env"
        )


def is_server(uri: str) -> bool:
    """Whether MLflow's store is behind a server, and not a file of this machine."""
    return uri.startswith(("http://", "https://"))


def unreachable(url: str, login: str = "", any_answer: bool = False) -> str | None:
    """Why a server does not answer.

    Args:
        url: of its health.
        login: "user:password"; empty = none.
        any_answer: a refusal is an answer too: somebody is there.

    Returns:
        The reason; None = it answers.
    """
    header = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=5):
            return None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        if any_answer and isinstance(error, urllib.error.HTTPError):
            return None
        if isinstance(error, http.client.HTTPException):
            return "what answers speaks no HTTP"
        return str(getattr(error, "reason", error)) or type(error).__name__
