"""Pictures where there is no display."""

from __future__ import annotations

import ctypes.util
import os


def headless_rendering() -> None:
    """Choose renderers that need no display where there is none; call it before an environment is made.

    Sets MUJOCO_GL (EGL, else OSMesa, whichever library is there) and SDL_VIDEODRIVER (pygame), each only where the
    user has not. An empty MUJOCO_GL, which MuJoCo's renderer refuses, counts as not set and is removed.
    """
    if not os.environ.get("MUJOCO_GL"):
        os.environ.pop("MUJOCO_GL", None)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    if "MUJOCO_GL" not in os.environ:
        software = not ctypes.util.find_library("EGL") and ctypes.util.find_library("OSMesa")
        os.environ["MUJOCO_GL"] = "osmesa" if software else "egl"
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
