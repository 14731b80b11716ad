"""Training from a user's script in the style of SheepRL, in which a function takes the config and calls `run(cfg)`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flows.cli.main import main as command
from flows.cli.other_commands import CommandLine, translate
from flows.config.compose import compose, compose_for_script, compose_tree
from flows.process.exits import run_command
from flows.runs.script_plugins import compose_in_script
from flows.settings import read_dotenv
from rlcore import plugins
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.system.printable import print_safely

# The config of SheepRL's evaluation scripts.
EVALUATION = {"checkpoint_path": "???", "fabric": {"accelerator": "cpu"}, "env": {"capture_video": True}}

_typed: list[str] = []  # overrides on the command line of the running script


def main(function: Callable[[Any], Any], config_name: str) -> Callable[[], Any]:
    """Wrap `function`, which takes a config, in a function without arguments.

    The wrapper composes the config from the script's command line.

    Args:
        function: function that takes the config.
        config_name: "config" for the config of a training, or "eval_config" for the config of an evaluation.

    Returns:
        The wrapper; it exits the process if `function` fails.

    Raises:
        UserError: `config_name` has another value.
    """
    configs = {"config": lambda: compose_for_script(_from_command_line()), "eval_config": _evaluation_config}
    if config_name not in configs:
        raise UserError(f"config_name={config_name}: must be config, or eval_config in a script that evaluates")

    @functools.wraps(function)
    def start() -> Any:
        refuse_import()
        results: list[Any] = []

        def call() -> int:
            results.append(function(configs[config_name]()))
            return 0

        if code := run_command(call):
            sys.exit(code)
        return results[0]

    return start


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train from a config and return the summary; `cfg=None` uses the overrides on the script's command line.

    The equivalent command line of `shepherd` is printed, unless the script has changed the config.
    """
    refuse_import()

    composed = compose_in_script(lambda: compose(_from_command_line()) if cfg is None else compose_tree(cfg))
    from flows.train import run_flow  # Prefect reads environment variables on import, so check the config first

    from flows.runs.create import new_run  # isort: skip
    from flows.runs.notebook import RunSummary, notebook_progress  # isort: skip

    typed = [*_typed] or _of_hydra()
    if cfg is None or _timeless(composed[1]) == _timeless(
        compose(typed or ["exp=ppo"])[1]
    ):  # the script changed nothing
        print_safely(f"interpreted as: {CommandLine(['train', *typed])}", *plugins.as_typed(), file=sys.stderr)
    run = new_run(typed, composed=composed)
    with notebook_progress(run):
        return RunSummary(run_flow(run), run)


def evaluation(cfg: Mapping[str, Any], episodes: int) -> None:
    """Run `shepherd evaluate` on the config's `checkpoint_path`; exit the script if that fails."""
    from omegaconf import OmegaConf

    refuse_import()
    config: Any = OmegaConf.create(cfg)  # pyright: ignore[reportCallIssue, reportArgumentType]
    path = OmegaConf.select(config, "checkpoint_path", throw_on_missing=False)
    if not path:
        raise UserError(
            "checkpoint_path is required: give a run directory or checkpoint directory, as checkpoint_path=runs/a"
        )
    video = OmegaConf.select(config, "env.capture_video", default=True)
    words = [f"checkpoint_path={path}", f"env.capture_video={spell(video)}", "--episodes", str(episodes)]
    if code := command(["evaluate", *words, *plugins.as_typed()]):
        sys.exit(code)


def refuse_import() -> None:
    """Raise UserError if a script that calls `run` at its top level is imported as a plugin.

    The import would execute `run`, which starts the script again.
    """
    if (module := plugins.importing()) is not None:
        raise UserError(
            f"plugins=[{module}]: this script starts a run when it is imported; put the call into a block "
            'under `if __name__ == "__main__":`'
        )


def _timeless(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without run_name and run_dir, whose values contain the current time."""
    return {key: value for key, value in tree.items() if key not in ("run_name", "run_dir")}


def _from_command_line() -> list[str]:
    read_dotenv()
    modules, words = plugins.take_from(sys.argv[1:])
    plugins.name(modules)
    _typed[:] = translate(["train", *words]).words[1:]
    return _typed


def _evaluation_config() -> Any:
    """Return the config of an evaluation, from the script's command line."""
    from omegaconf import OmegaConf

    read_dotenv()
    modules, words = plugins.take_from(sys.argv[1:])
    plugins.name(modules)
    if wrong := next((word for word in words if "=" not in word), None):
        raise UserError(f"{wrong!r}: must have the form key=value, as checkpoint_path=runs/a")
    return OmegaConf.merge(EVALUATION, OmegaConf.from_dotlist(words))


def _of_hydra() -> list[str]:
    """Return the overrides of a script with `hydra.main`; an empty list if Hydra was not used."""
    from hydra.core.hydra_config import HydraConfig

    return [*HydraConfig.get().overrides.task] if HydraConfig.initialized() else []
