"""Redirection of MuJoCo's warnings to the log, where each appears once, for Gymnasium's robots and DeepMind Control."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Send the engine's warnings to logging. By default, MuJoCo writes them to MUJOCO_LOG.TXT in the working directory.

    dm-control redirects these warnings to a logger that repeats each one. Call this function after dm-control is
    imported.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(_tell)


@functools.cache
def _tell(text: str) -> None:
    """Log a warning of the engine.

    Deprecation warnings about files of packages are logged at debug level, because users cannot fix these files.
    """
    log.log(logging.DEBUG if "is deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
