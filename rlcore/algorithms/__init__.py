"""Registry of algorithms: maps the name of an algorithm to its config class, agent class and build function."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rlcore.config.run import AlgorithmConfig
from rlcore.config.values import nearest
from rlcore.errors import UserError

if TYPE_CHECKING:  # checking a config does not import torch
    from types import ModuleType

    from torch import nn

    from rlcore import protocols
    from rlcore.types import TrainingSchedule

    Build = Callable[..., tuple[protocols.Learner, protocols.Buffer, TrainingSchedule]]
    Policy = Callable[..., nn.Module]


class AlgorithmModule(Protocol):
    """Interface of an algorithm: an `Algorithm`, or the module of a plugin (see `register`)."""

    @property
    def Config(self) -> type[AlgorithmConfig]:  # noqa: N802 - named like the class in a module
        """Config class of the algorithm."""
        ...

    @property
    def Agent(self) -> Policy:  # noqa: N802 - named like the class in a module
        """Agent class of the algorithm."""
        ...

    @property
    def build(self) -> Build:
        """Function that takes a `rlcore.types.Context` and returns learner, buffer and training schedule."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """Built-in algorithm, whose modules are imported on first use.

    The config module does not import torch, so a configuration can be checked without waiting for that import.

    Attributes:
        package: Python package of the algorithm. Its module `learner` contains agent, losses and learner.
        keys: name of the config module in the package, which defines the class `Config`. SAC, DroQ, CrossQ and SimBa
            have the same package and learner; they differ in their config modules.
        config: name of the config class in that module. The phases of Plan2Explore have the same module.
    """

    package: str
    keys: str = "config"
    config: str = "Config"

    @property
    def Config(self) -> type[AlgorithmConfig]:  # noqa: N802 - named like the class in a module
        """Config class of the algorithm; its module is imported on first use."""
        return getattr(import_module(f"{self.package}.{self.keys}"), self.config)

    @property
    def learner(self) -> ModuleType:
        """Python module that contains agent, losses and learner of the algorithm; importing it imports torch."""
        return import_module(f"{self.package}.learner")

    @property
    def Agent(self) -> Policy:  # noqa: N802 - named like the class in a module
        """Agent class of the algorithm."""
        return self.learner.Agent

    @property
    def build(self) -> Build:
        """Function that takes a `rlcore.types.Context` and returns learner, buffer and training schedule."""
        return self.learner.build

    @property
    def make_behavior_policy(self) -> Policy | None:
        """Function that creates the behavior policy from agent and config; None if the agent itself collects data."""
        return getattr(self.learner, "make_behavior_policy", None)


DREAMERS = ("dreamer_v1", "dreamer_v2", "dreamer_v3", "dreamer_v3_5")
LONGEST_TITLE = 20  # characters; a longer text before the colon is a sentence of a plugin's docstring, not a title
ALGORITHMS: dict[str, AlgorithmModule] = {
    **{name: Algorithm(f"{__name__}.on_policy.{name}") for name in ("ppo", "a2c", "ppo_recurrent")},
    "sac": Algorithm(f"{__name__}.sac"),
    **{name: Algorithm(f"{__name__}.sac", name) for name in ("droq", "crossq", "simba")},
    **{name: Algorithm(f"{__name__}.dreamer.{name}") for name in DREAMERS},
    "sac_ae": Algorithm(f"{__name__}.sac.sac_ae"),
    **{
        f"p2e_dv{version}_{phase}": Algorithm(f"{__name__}.dreamer.plan2explore", f"p2e_dv{version}", config)
        for version in ("1", "2", "3", "3_5")
        for phase, config in (("exploration", "Exploration"), ("finetuning", "FineTuning"))
    },
}


# Name prefixes of SheepRL's algorithms that are not implemented yet.
ABSENT = ("ppo_decoupled", "sac_decoupled")


def refuse_unknown(name: str) -> None:
    """Raise UserError if no algorithm `name` is registered.

    The message lists the available algorithms. If SheepRL has an algorithm of this name, the message mentions it.
    """
    if name in ALGORITHMS:
        return
    known = f"algorithms: {', '.join(ALGORITHMS)}, and those of plugins (plugins=[your_module])"
    if name.startswith(ABSENT):
        raise UserError(f"algo.name={name}: SheepRL's {name} is not implemented yet; {known}")
    raise UserError(f"algo.name={name}: unknown algorithm{nearest(name, ALGORITHMS)}; {known}")


def title(name: str) -> str:
    """Return the display name of an algorithm, for example "Dreamer V3".

    It is the text before the first colon of the algorithm's module docstring. If there is no such text, or if it has
    more than 20 characters, the display name is `name` in capitals.
    """
    known, colon, _ = paper(ALGORITHMS[name]).partition(": ") if name in ALGORITHMS else ("", "", "")
    return known if colon and len(known) <= LONGEST_TITLE else name.upper()


def paper(algorithm: AlgorithmModule) -> str:
    """Return the first line of an algorithm's module docstring, which cites the paper (title, authors, year, arXiv id).

    The module is parsed, not imported, because importing it would import torch.
    """
    text = algorithm.__doc__
    if isinstance(algorithm, Algorithm):
        spec = find_spec(f"{algorithm.package}.{'learner' if algorithm.keys == 'config' else algorithm.keys}")
        assert spec is not None and spec.origin is not None
        text = ast.get_docstring(ast.parse(Path(spec.origin).read_text()))
    return (text or "").strip().partition("\n")[0]


def register(name: str, module: object) -> None:
    """Register an algorithm, so that a config can select it. A plugin calls this function when it is imported.

    Args:
        name: value of `algo.name` that selects the algorithm. The key `name` of the algorithm's `Config` must have it
            as default.
        module: Python module that defines three names. `Config` is a subclass of
            `rlcore.config.run.AlgorithmConfig`. `Agent` is a class, constructed from config, environment spec,
            `distribution.type` and a torch.Generator. `build` is a function that takes a `rlcore.types.Context` and
            returns learner, buffer and training schedule. The first line of the module's docstring cites the paper.

    Raises:
        UserError: If `Config`, `Agent` or `build` is missing, or if another algorithm has this name.
    """
    if ALGORITHMS.get(name, module) is not module:
        raise UserError(
            f"algorithm {name!r} of plugin {getattr(module, '__name__', module)}: the name is taken by another "
            "algorithm; choose another name"
        )
    missing = [part for part in ("Config", "Agent", "build") if not hasattr(module, part)]
    if missing or not issubclass(getattr(module, "Config", object), AlgorithmConfig):
        what = (
            f"{missing[0]} is missing; define it in the module"
            if missing
            else "Config must be a subclass of rlcore.config.run.AlgorithmConfig"
        )
        raise UserError(f"algorithm {name!r} of plugin {getattr(module, '__name__', module)}: {what}")
    ALGORITHMS[name] = cast("AlgorithmModule", module)
