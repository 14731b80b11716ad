"""Training as experiment stages: plain functions, and the Prefect tasks, MLflow mirror and registry around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.evaluation.loaded_world import LoadedWorldModel


def load_policy(path_or_uri: str | Path) -> LoadedPolicy:
    """A trained policy, ready for `predict(obs)`, or `step(obs, carry)` where it remembers.

    Args:
        path_or_uri: run directory, checkpoint directory, exported policy folder, or `models:/NAME@champion`.

    Returns:
        The policy.

    Raises:
        UserError: there is no such policy.
    """
    from rlcore.evaluation.policy import load_policy as load

    return load(_local(path_or_uri))


def load_world_model(path_or_uri: str | Path) -> LoadedWorldModel:
    """A trained world model to look into, by `observe`, `imagine` and `decode`.

    Args:
        path_or_uri: run directory, checkpoint directory, exported policy folder, or `models:/NAME@champion`, of a
            policy or of a registered `world_model`.

    Returns:
        The world model.

    Raises:
        UserError: there is no such model, or its algorithm learns none.
    """
    from rlcore.evaluation.policy import load_world_model as load

    return load(_local(path_or_uri))


def load_part(path_or_uri: str | Path) -> dict[str, Any]:
    """The state of a part of a learner that is registered alone, a critic say: name -> tensor.

    Args:
        path_or_uri: `models:/NAME/VERSION`, or a folder with part.json.

    Returns:
        The state, as the part's `load_state_dict` takes it.

    Raises:
        UserError: there is no such part.
    """
    from rlcore.evaluation.policy import load_part as load

    return load(_local(path_or_uri))


def _local(path_or_uri: str | Path) -> str | Path:
    """The place on this machine of what a path or a models:/ URI names."""
    if str(path_or_uri).startswith("models:/"):
        from flows.registry.models import resolve_uri  # every command imports flows first

        return resolve_uri(str(path_or_uri))
    return path_or_uri


def main(function: Callable[[Any], Any] | None = None, *, config_name: str = "config") -> Any:
    """Decorate a script's function of its config, in place of `hydra.main`: it is called without arguments.

    The config is that of the script's own command line, with SheepRL's keys: `_target_` names classes, interpolations
    are kept. A mistake in it ends the script with a sentence and exit code 2.

    Args:
        function: takes the config.
        config_name: "config" if the script trains, with the command line of `shepherd train`; "eval_config" if it calls
            `evaluation`, with `checkpoint_path=...`.

    Returns:
        The function without arguments; a decorator if only `config_name` is given.
    """
    from flows.cli.script import main as made  # every command imports flows first

    def decorate(function: Callable[[Any], Any]) -> Callable[[], Any]:
        return made(function, config_name)

    return decorate if function is None else decorate(function)


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train, from a script of one's own, as SheepRL's function of this name.

    An environment or an algorithm that the script registers is registered in the trainer's process too: the script, or
    the package that brings it, is named as a plugin of the run.

    Args:
        cfg: a whole config, as `main` or `hydra.main` hand it over; None: that of the script's own command line.

    Returns:
        The run's summary.

    Raises:
        UserError: mistakes of the config.
    """
    from flows.cli.script import run as train  # every command imports flows first

    return train(cfg)


def evaluation(cfg: Mapping[str, Any], episodes: int = 100) -> None:
    """Evaluate a checkpoint, from a script of one's own, as SheepRL's function of this name; prints the returns.

    Args:
        cfg: with `checkpoint_path`, a run or a checkpoint made here, and `env.capture_video`; as
            `main(config_name="eval_config")` hands it over.
        episodes: episodes played greedily, and as many with sampled actions.

    Raises:
        UserError: there is no such checkpoint.
    """
    from flows.cli.script import evaluation as evaluate  # every command imports flows first

    evaluate(cfg, episodes)


__all__ = ["evaluation", "load_part", "load_policy", "load_world_model", "main", "run"]
