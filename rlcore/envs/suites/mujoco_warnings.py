"""Redirection of MuJoCo's warnings to the log, each once, for Gymnasium's robots and DeepMind Control."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Send the engine's warnings to logging; by default it writes MUJOCO_LOG.TXT in the working directory.

    dm-control redirects them to a logger that repeats each one, so call this function after it is imported.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(_tell)


@functools.cache
def _tell(text: str) -> None:
    """Log a warning; deprecations in the files of packages are logged at debug level, because users cannot fix them."""
    log.log(logging.DEBUG if "is deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
