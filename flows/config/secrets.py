"""No password in a config: it is stored with the run, and shown by MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.errors import UserError
from rlcore.system.secrets import redacted

ELSEWHERE = {
    "metric.logger.tracking_uri": "leave it null and put the whole address into MLFLOW_TRACKING_URI, or write it "
    "without user and password and put those into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, in the "
    "environment or in .env"
}


def refuse_secrets(value: Any, key: str = "") -> None:
    """Raise a `UserError` where a config (plain values, `key` above them) holds an address with a password or token."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            refuse_secrets(name, key)
            refuse_secrets(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for part in value:
            refuse_secrets(part, key)
    elif isinstance(value, str) and redacted(value) != value:
        fix = ELSEWHERE.get(key, "write the address without it")
        raise UserError(f"{key}={value}: a config is stored with its run, so no password may stand in it; {fix}")
