"""MuJoCo's warnings, of Gymnasium's robots and of DeepMind Control's tasks: each once, in the log."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Send the engine's warnings to logging; its own way is to write MUJOCO_LOG.TXT into the working directory.

    dm-control sends them to a logger that prints each again and again: call this when that is imported.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(_tell)


@functools.cache
def _tell(text: str) -> None:
    """Log one; that something in a package's file will not be known to a later MuJoCo is nothing for a user."""
    log.log(logging.DEBUG if "is deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
