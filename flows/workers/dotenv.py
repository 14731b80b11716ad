"""Lines that `make up` writes into the file `.env`: addresses and password of the Prefect and MLflow servers."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from flows.settings import DATABASE, home
from rlcore.store.directory import write_text

USER = "shepherd"
BEGIN, END = "# written by make up; make down takes it away", "# end of make up"
NAMES = (
    "PREFECT_API_URL",
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)
# The block ends at the end line, or at the last variable if the user has deleted the end line.
OURS = re.compile(rf"{BEGIN}\n(?:[^\0]*?{END}\n|(?:(?:{'|'.join((*NAMES, DATABASE))})=.*\n)*)")


def client_variables(prefect: str, mlflow: str, password: str) -> dict[str, str]:
    """Return environment variables that make clients connect to the Prefect and MLflow servers of `make up`.

    Args:
        prefect: URL of the Prefect server.
        mlflow: URL of the MLflow server.
        password: password of both servers.

    Returns:
        Name -> value.
    """
    return dict(zip(NAMES, (f"{prefect}/api", f"{USER}:{password}", mlflow, USER, password), strict=True))


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
