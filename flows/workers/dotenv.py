"""Lines that `make up` writes into `.env`: where its servers are, and their password."""

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
# Up to the last line, or where somebody took that away, up to the last variable.
OURS = re.compile(rf"{BEGIN}\n(?:[^\0]*?{END}\n|(?:(?:{'|'.join((*NAMES, DATABASE))})=.*\n)*)")


def client_variables(prefect: str, mlflow: str, password: str) -> dict[str, str]:
    """The environment variables that clients of the two servers read, from the servers' URLs and password."""
    return dict(zip(NAMES, (f"{prefect}/api", f"{USER}:{password}", mlflow, USER, password), strict=True))


def keep_password(path: Path) -> str:
    """The password in a file, made at the first call: a terminal that loaded `.env` can use later servers."""
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def write_dotenv(variables: Mapping[str, str]) -> None:
    """Put the variables between our two lines of `.env`, or take the lines away; the user's own lines stay."""
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
    """Write a file that only this user may read."""
    others = os.umask(0o077)
    try:
        write_text(path, text)
    finally:
        os.umask(others)
