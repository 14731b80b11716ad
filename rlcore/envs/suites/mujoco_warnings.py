"""Redirection of MuJoCo's warnings to the log, for Gymnasium's robots and DeepMind Control. A text is logged once."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Redirect MuJoCo's warnings to the module `logging`, which logs each text once.

    By default, MuJoCo writes them to the file MUJOCO_LOG.TXT in the working directory. When dm-control is imported, it
    redirects them to a logger without a filter for repeated texts. Therefore call this function after that import.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(_warn)


@functools.cache
def _warn(text: str) -> None:
    """Log a warning of MuJoCo.

    Deprecation warnings about files of packages are logged at debug level, because users cannot fix these files.
    """
    log.log(logging.DEBUG if "is deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
