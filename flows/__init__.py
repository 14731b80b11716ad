"""Training in stages that are plain functions, and their integration with Prefect, MLflow and the model registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.evaluation.loaded_world import LoadedWorldModel


def load_policy(path_or_uri: str | Path) -> LoadedPolicy:
    """Load a trained policy. Call its `predict(obs)`, or `step(obs, carry)` if the policy is recurrent.

    Args:
        path_or_uri: run directory, checkpoint directory, exported policy folder, or `models:/NAME@champion`.

    Returns:
        The policy.

    Raises:
        UserError: If there is no such policy.
    """
    from rlcore.evaluation.policy import load_policy as load

    return load(_local(path_or_uri))


def load_world_model(path_or_uri: str | Path) -> LoadedWorldModel:
    """Load a trained world model, with the methods `observe`, `imagine` and `decode`.

    Args:
        path_or_uri: run directory, checkpoint directory, exported policy folder, or `models:/NAME@champion`. The
            registered model is a policy or a `world_model`.

    Returns:
        The world model.

    Raises:
        UserError: If there is no such model, or its algorithm does not learn a world model.
    """
    from rlcore.evaluation.policy import load_world_model as load

    return load(_local(path_or_uri))


def load_part(path_or_uri: str | Path) -> dict[str, Any]:
    """Load the state of a learner's component that is registered as its own model, for example a critic.

    Args:
        path_or_uri: `models:/NAME/VERSION`, or a folder with part.json.

    Returns:
        The state (name -> tensor) for the component's `load_state_dict`.

    Raises:
        UserError: If there is no such component.
    """
    from rlcore.evaluation.policy import load_part as load

    return load(_local(path_or_uri))


def _local(path_or_uri: str | Path) -> str | Path:
    """Return the local path for a path or for a models:/ URI."""
    if str(path_or_uri).startswith("models:/"):
        from flows.registry.models import resolve_uri  # every command imports flows first

        return resolve_uri(str(path_or_uri))
    return path_or_uri


def main(function: Callable[[Any], Any] | None = None, *, config_name: str = "config") -> Any:
    """Decorate a script's main function, as a replacement for `hydra.main`. The decorated function takes no arguments.

    The config is composed from the script's command line. It has the keys of SheepRL's configs: `_target_` keys name
    classes, and interpolations are kept. If the config has a mistake, the script prints a one-line message and exits
    with code 2.

    Args:
        function: the script's main function; it takes the config.
        config_name: "config" if the script trains, with the command line of `shepherd train`; "eval_config" if it calls
            `evaluation`, with `checkpoint_path=...`.

    Returns:
        The function without arguments; a decorator if only `config_name` is given.
    """
    from flows.cli.script import main as script_main  # every command imports flows first

    def decorate(function: Callable[[Any], Any]) -> Callable[[], Any]:
        return script_main(function, config_name)

    return decorate if function is None else decorate(function)


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train from a script, like `sheeprl.run`.

    A trainer process, separate from the script, trains the run. If the script or a package that it imports registers
    the environment or the algorithm, the registering module becomes a plugin of the run, which the trainer process
    imports.

    Args:
        cfg: a complete config, from `main` or `hydra.main`; None: the config of the script's command line.

    Returns:
        The run's summary.

    Raises:
        UserError: If the config has mistakes.
    """
    from flows.cli.script import run as train  # every command imports flows first

    return train(cfg)


def evaluation(cfg: Mapping[str, Any], episodes: int = 100) -> None:
    """Evaluate a checkpoint from a script, like `sheeprl.evaluation`, and print the returns.

    Args:
        cfg: the config from `main(config_name="eval_config")`, with `env.capture_video` and with `checkpoint_path`, a
            run or a checkpoint of this project.
        episodes: number of greedy episodes, and of episodes with sampled actions.

    Raises:
        UserError: If there is no such checkpoint.
    """
    from flows.cli.script import evaluation as evaluate  # every command imports flows first

    evaluate(cfg, episodes)


__all__ = ["evaluation", "load_part", "load_policy", "load_world_model", "main", "run"]
