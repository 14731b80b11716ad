"""The registry: algorithm name -> its module. Every module ends with `build` and has a `Config` and an `Agent`."""

from __future__ import annotations

from rlcore.algorithms import a2c, ppo

ALGORITHMS = {"ppo": ppo, "a2c": a2c}
