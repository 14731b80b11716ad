"""The registry: algorithm name -> its package (a plugin may be one module), which has `Config`, `Agent` and `build`."""

from __future__ import annotations

from typing import Any

from rlcore.algorithms import a2c, ppo, sac
from rlcore.config.algorithm import AlgorithmConfig
from rlcore.errors import UserError

ALGORITHMS: dict[str, Any] = {"ppo": ppo, "a2c": a2c, "sac": sac}


def register(name: str, module: Any) -> None:
    """Add an algorithm; a plugin calls this when it is imported.

    Args:
        name: what `algo.name` is to be; the default of the config's `name`.
        module: with `Config` (a subclass of `rlcore.config.algorithm.AlgorithmConfig`), `Agent` (made of config, spec,
            distribution and a torch.Generator) and `build` (Context -> learner, buffer, plan); its docstring begins
            with the paper.

    Raises:
        UserError: one of them is missing, or the name is taken.
    """
    if ALGORITHMS.get(name, module) is not module:
        raise UserError(f"algorithm {name!r} of plugin {getattr(module, '__name__', module)}: the name is taken")
    missing = [part for part in ("Config", "Agent", "build") if not hasattr(module, part)]
    if missing or not issubclass(module.Config, AlgorithmConfig):
        what = f"no {missing[0]}" if missing else "a Config that is no AlgorithmConfig"
        raise UserError(f"algorithm {name!r} of plugin {getattr(module, '__name__', module)}: it has {what}")
    ALGORITHMS[name] = module
