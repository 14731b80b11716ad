"""Rendering without a display."""

from __future__ import annotations

import ctypes.util
import os


def headless_rendering() -> None:
    """Select renderers that need no display, if there is no display. Call this before an environment is created.

    The function sets the environment variables MUJOCO_GL (EGL, or OSMesa if only that library is installed) and
    SDL_VIDEODRIVER (for pygame), unless the user has set them. If MUJOCO_GL is empty, it is removed, because MuJoCo's
    renderer raises an error for an empty value.
    """
    if not os.environ.get("MUJOCO_GL"):
        os.environ.pop("MUJOCO_GL", None)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    if "MUJOCO_GL" not in os.environ:
        software = not ctypes.util.find_library("EGL") and ctypes.util.find_library("OSMesa")
        os.environ["MUJOCO_GL"] = "osmesa" if software else "egl"
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
