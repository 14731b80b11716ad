"""The registry: algorithm name -> its module. Every module ends with `build` and has a `Config`."""

from __future__ import annotations

from rlcore.algorithms import ppo

ALGORITHMS = {"ppo": ppo}
