"""The registry: algorithm name -> what it is made of, `Config`, `Agent` and `build`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlcore.algorithms.a2c import config as a2c
from rlcore.algorithms.dreamer_v1 import config as dreamer_v1
from rlcore.algorithms.dreamer_v2 import config as dreamer_v2
from rlcore.algorithms.dreamer_v3 import config as dreamer_v3
from rlcore.algorithms.ppo import config as ppo
from rlcore.algorithms.ppo_recurrent import config as ppo_recurrent
from rlcore.algorithms.sac import config as sac
from rlcore.algorithms.sac import crossq, droq, simba
from rlcore.algorithms.sac_ae import config as sac_ae
from rlcore.config.algorithm import AlgorithmConfig
from rlcore.errors import UserError


@dataclass(frozen=True)
class Algorithm:
    """A built-in algorithm.

    Attributes:
        Config: its keys.
        learner: the module with its mathematics, which brings torch.
        preset: the module that says by which keys it is that algorithm, where others have this learner too.
    """

    Config: type[AlgorithmConfig]
    learner: str
    preset: str = ""

    @cached_property
    def module(self) -> Any:
        """The learner's module, imported when somebody first asks for something in it."""
        return import_module(self.learner)

    @property
    def Agent(self) -> Any:  # noqa: N802 - as a module has it
        """The class of its agent."""
        return self.module.Agent

    @property
    def build(self) -> Any:
        """Context -> learner, buffer, plan."""
        return self.module.build


LONGEST_TITLE = 20  # characters; a plugin's sentence with a colon in it is not its name
SAC = "rlcore.algorithms.sac.learner"
ALGORITHMS: dict[str, Any] = {  # a plugin's is its module
    "ppo": Algorithm(ppo.Config, "rlcore.algorithms.ppo.learner"),
    "a2c": Algorithm(a2c.Config, "rlcore.algorithms.a2c.learner"),
    "ppo_recurrent": Algorithm(ppo_recurrent.Config, "rlcore.algorithms.ppo_recurrent.learner"),
    "sac": Algorithm(sac.Config, SAC),
    "droq": Algorithm(droq.Config, SAC, droq.__name__),
    "crossq": Algorithm(crossq.Config, SAC, crossq.__name__),
    "simba": Algorithm(simba.Config, SAC, simba.__name__),
    "dreamer_v1": Algorithm(dreamer_v1.Config, "rlcore.algorithms.dreamer_v1.learner"),
    "dreamer_v2": Algorithm(dreamer_v2.Config, "rlcore.algorithms.dreamer_v2.learner"),
    "dreamer_v3": Algorithm(dreamer_v3.Config, "rlcore.algorithms.dreamer_v3.learner"),
    "sac_ae": Algorithm(sac_ae.Config, "rlcore.algorithms.sac_ae.learner"),
}


def title(name: str) -> str:
    """Name of an algorithm as people write it (Dreamer V3): the word before its paper's title, in its module."""
    known, colon, _ = paper(ALGORITHMS[name]).partition(": ") if name in ALGORITHMS else ("", "", "")
    return known if colon and len(known) <= LONGEST_TITLE else name.upper()


def paper(algorithm: Any) -> str:
    """Title, authors, year and place of publication: the first line of its module, which is not imported for that."""
    text = algorithm.__doc__
    if isinstance(algorithm, Algorithm):
        spec = find_spec(algorithm.preset or algorithm.learner)
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
