"""Trainings from a script of the user's own, as SheepRL's have them: a function of the config that calls `run`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flows.cli.other_commands import CommandLine, translate
from flows.config.compose import compose, compose_tree
from flows.settings import read_dotenv
from rlcore import plugins
from rlcore.system.printable import print_safely

_typed: list[str] = []  # the overrides behind the script that is running


def main(function: Callable[[Any], Any]) -> Callable[[], Any]:
    """`function` as one without arguments, which hands it the config of what the script was started with."""
    from omegaconf import OmegaConf

    @functools.wraps(function)
    def start() -> Any:
        return function(OmegaConf.create(compose(_from_command_line())[1]))

    return start


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train from a config, None: from what the script was started with, and say which line that stands for."""
    from flows.train import run_flow  # Prefect, which reads the environment

    from flows.runs.create import new_run  # isort: skip

    composed = compose(_from_command_line()) if cfg is None else compose_tree(cfg)
    typed = [*_typed] or _of_hydra()
    if cfg is None or _timeless(composed[1]) == _timeless(compose(typed or ["exp=ppo"])[1]):  # nothing was changed
        print_safely(f"this stands for: {CommandLine(['train', *typed])}", *plugins.as_typed(), file=sys.stderr)
    return run_flow(new_run(typed, composed=composed))


def _timeless(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the places that the present second names."""
    return {key: value for key, value in tree.items() if key not in ("run_name", "run_dir")}


def _from_command_line() -> list[str]:
    read_dotenv()
    modules, words = plugins.take_from(sys.argv[1:])
    plugins.name(modules)
    _typed[:] = translate(["train", *words]).words[1:]
    return _typed


def _of_hydra() -> list[str]:
    """The overrides of a script with `hydra.main`; none where another program has put the config together."""
    from hydra.core.hydra_config import HydraConfig

    return [*HydraConfig.get().overrides.task] if HydraConfig.initialized() else []
