"""The registry: algorithm name -> what it is made of, `Config`, `Agent` and `build`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlcore.config.algorithm import AlgorithmConfig
from rlcore.errors import UserError


@dataclass(frozen=True)
class Algorithm:
    """A built-in algorithm, of which nothing is imported before it is asked for.

    Attributes:
        package: where it lies; its mathematics, which bring torch, are the module `learner` in it.
        keys: the module there with its keys, which says by which of them it is that algorithm where others share the
            learner.
    """

    package: str
    keys: str = "config"

    @cached_property
    def Config(self) -> type[AlgorithmConfig]:  # noqa: N802 - as a module has it
        """The class of its keys."""
        return import_module(f"{self.package}.{self.keys}").Config

    @cached_property
    def learner(self) -> Any:
        """The module with its mathematics."""
        return import_module(f"{self.package}.learner")

    @property
    def Agent(self) -> Any:  # noqa: N802 - as a module has it
        """The class of its agent."""
        return self.learner.Agent

    @property
    def build(self) -> Any:
        """Context -> learner, buffer, plan."""
        return self.learner.build


LONGEST_TITLE = 20  # characters; a plugin's sentence with a colon in it is not its name
ALGORITHMS: dict[str, Any] = {  # a plugin's is its module
    **{name: Algorithm(f"{__name__}.{name}") for name in ("ppo", "a2c", "ppo_recurrent", "sac")},
    **{name: Algorithm(f"{__name__}.sac", name) for name in ("droq", "crossq", "simba")},
    **{name: Algorithm(f"{__name__}.{name}") for name in ("dreamer_v1", "dreamer_v2", "dreamer_v3", "sac_ae")},
}


def title(name: str) -> str:
    """Name of an algorithm as people write it (Dreamer V3): the word before its paper's title, in its module."""
    known, colon, _ = paper(ALGORITHMS[name]).partition(": ") if name in ALGORITHMS else ("", "", "")
    return known if colon and len(known) <= LONGEST_TITLE else name.upper()


def paper(algorithm: Any) -> str:
    """Title, authors, year and place of publication: the first line of its module, which is not imported for that."""
    text = algorithm.__doc__
    if isinstance(algorithm, Algorithm):
        spec = find_spec(f"{algorithm.package}.{'learner' if algorithm.keys == 'config' else algorithm.keys}")
        assert spec is not None and spec.origin is not None
        text = ast.get_docstring(ast.parse(Path(spec.origin).read_text()))
    return (text or "").strip().partition("\n")[0]


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
