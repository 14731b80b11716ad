"""The lines that `make up` writes into the file `.env`: addresses and password of its servers."""

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
    """Return the environment variables of clients of the two servers, from the servers' URLs and password."""
    return dict(zip(NAMES, (f"{prefect}/api", f"{USER}:{password}", mlflow, USER, password), strict=True))


def keep_password(path: Path) -> str:
    """Return the password in a file. If the file does not exist, create it with a new password.

    The password stays the same, so that a terminal that has loaded `.env` can use servers that are started later.
    """
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def write_dotenv(variables: Mapping[str, str]) -> None:
    """Write the variables between two marker lines of `.env`.

    Without variables, the marker lines and all lines between them are removed. The user's own lines stay.
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
