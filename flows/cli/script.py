"""Trainings from a script of the user's own, as SheepRL's have them: a function of the config that calls `run`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flows.cli.main import main as command
from flows.cli.other_commands import CommandLine, translate
from flows.config.compose import compose, compose_for_script, compose_tree
from flows.process.exits import run_and_tell
from flows.runs.script_plugins import compose_in_script
from flows.settings import read_dotenv
from rlcore import plugins
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.system.printable import print_safely

# The config of SheepRL's evaluation scripts.
EVALUATION = {"checkpoint_path": "???", "fabric": {"accelerator": "cpu"}, "env": {"capture_video": True}}

_typed: list[str] = []  # the overrides behind the script that is running


def main(function: Callable[[Any], Any], config_name: str) -> Callable[[], Any]:
    """Return `function` as one without arguments, which is called with the config that the script was started with."""
    configs = {"config": lambda: compose_for_script(_from_command_line()), "eval_config": _evaluation_config}
    if config_name not in configs:
        raise UserError(f"config_name={config_name}: must be config, or eval_config for a script that evaluates")

    @functools.wraps(function)
    def start() -> Any:
        refuse_import()
        results: list[Any] = []

        def call() -> int:
            results.append(function(configs[config_name]()))
            return 0

        if code := run_and_tell(call):
            sys.exit(code)
        return results[0]

    return start


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train from a config, None: from what the script was started with, and say which line that stands for."""
    refuse_import()

    made = compose_in_script(lambda: compose(_from_command_line()) if cfg is None else compose_tree(cfg))
    from flows.train import run_flow  # Prefect, which reads the environment; not before the config is right

    from flows.runs.create import new_run  # isort: skip

    typed = [*_typed] or _of_hydra()
    if cfg is None or _timeless(made[1]) == _timeless(compose(typed or ["exp=ppo"])[1]):  # nothing was changed
        print_safely(f"this stands for: {CommandLine(['train', *typed])}", *plugins.as_typed(), file=sys.stderr)
    return run_flow(new_run(typed, composed=made))


def evaluation(cfg: Mapping[str, Any], episodes: int) -> None:
    """Run `shepherd evaluate` on the checkpoint that a config names; end the script where that fails."""
    from omegaconf import OmegaConf

    refuse_import()
    config: Any = OmegaConf.create(cfg)  # pyright: ignore[reportCallIssue, reportArgumentType]
    path = OmegaConf.select(config, "checkpoint_path", throw_on_missing=False)
    if not path:
        raise UserError("checkpoint_path is required: name a run or a checkpoint made here, as checkpoint_path=runs/a")
    video = OmegaConf.select(config, "env.capture_video", default=True)
    words = [f"checkpoint_path={path}", f"env.capture_video={spell(video)}", "--episodes", str(episodes)]
    if code := command(["evaluate", *words, *plugins.as_typed()]):
        sys.exit(code)


def refuse_import() -> None:
    """Refuse a script that calls `run` at its top level and is imported as a plugin: it would start itself again."""
    if (module := plugins.importing()) is not None:
        raise UserError(
            f"plugins=[{module}]: this script starts a run when it is imported; put the call into a block "
            'that begins with `if __name__ == "__main__":`'
        )


def _timeless(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the places that the present second names."""
    return {key: value for key, value in tree.items() if key not in ("run_name", "run_dir")}


def _from_command_line() -> list[str]:
    read_dotenv()
    modules, words = plugins.take_from(sys.argv[1:])
    plugins.name(modules)
    _typed[:] = translate(["train", *words]).words[1:]
    return _typed


def _evaluation_config() -> Any:
    """Return the config of an evaluation that the script was started with."""
    from omegaconf import OmegaConf

    read_dotenv()
    modules, words = plugins.take_from(sys.argv[1:])
    plugins.name(modules)
    if wrong := next((word for word in words if "=" not in word), None):
        raise UserError(f"{wrong!r}: cannot be read; write key=value, as checkpoint_path=runs/a")
    return OmegaConf.merge(EVALUATION, OmegaConf.from_dotlist(words))


def _of_hydra() -> list[str]:
    """The overrides of a script with `hydra.main`; none where another program has put the config together."""
    from hydra.core.hydra_config import HydraConfig

    return [*HydraConfig.get().overrides.task] if HydraConfig.initialized() else []
