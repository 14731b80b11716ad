"""Training in stages (functions such as train or evaluate), run by Prefect, with MLflow and the model registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.runs.frames import RunFrames
    from rlcore.evaluation.export import ExportedFile
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.evaluation.loaded_world import LoadedWorldModel


def load_policy(path_or_uri: str | Path) -> LoadedPolicy:
    """Load a trained policy. Call its `predict(obs)`, or `step(obs, carry)` if the policy is recurrent.

    Args:
        path_or_uri: run directory, checkpoint directory, policy folder, or `models:/NAME@champion`.

    Returns:
        The policy.

    Raises:
        UserError: If there is no such policy.
    """
    from flows.registry.models import local_path  # every command imports flows first
    from rlcore.evaluation.policy import load_policy as load

    return load(local_path(path_or_uri))


def export(
    path_or_uri: str | Path, onnx: str | Path | None = None, torch: str | Path | None = None
) -> list[ExportedFile]:
    """Write the greedy actions of a trained policy to files that run without this project.

    Each file is compared with the policy on random observations before it appears under its name.

    Args:
        path_or_uri: run directory, checkpoint directory, policy folder, or `models:/NAME@champion`.
        onnx: path of a file for ONNX runtimes; None = do not write one. It needs the extra `onnx`.
        torch: path of a file for `torch.export.load`, with the suffix .pt2; None = do not write one.

    Returns:
        For each written file: its path, its inputs and outputs, and the result of the comparison.

    Raises:
        UserError: If there is no such policy, if it cannot be exported, or if no path is given.
        RunError: If the outputs of an exported file differ from those of the policy.
    """
    from rlcore.evaluation.export import check_destinations, export_files

    check_destinations(onnx, torch)
    return export_files(load_policy(path_or_uri), onnx, torch)


def load_world_model(path_or_uri: str | Path) -> LoadedWorldModel:
    """Load a trained world model, with the methods `observe`, `imagine` and `decode`.

    Args:
        path_or_uri: run directory, checkpoint directory, policy folder, or `models:/NAME@champion` of a
            registered policy or world model.

    Returns:
        The world model.

    Raises:
        UserError: If there is no such model, or its algorithm does not learn a world model.
    """
    from flows.registry.models import local_path  # every command imports flows first
    from rlcore.evaluation.policy import load_world_model as load

    return load(local_path(path_or_uri))


def load_part(path_or_uri: str | Path) -> dict[str, Any]:
    """Load the weights of a component of an agent, for example the critic, that was registered as a separate model.

    Args:
        path_or_uri: `models:/NAME/VERSION`, or a folder with part.json.

    Returns:
        Name -> tensor, for the `load_state_dict` of the component.

    Raises:
        UserError: If there is no such component.
    """
    from flows.registry.models import local_path  # every command imports flows first
    from rlcore.evaluation.policy import load_part as load

    return load(local_path(path_or_uri))


def load_runs(
    chosen: str = "",
    *,
    runs: str | Path | None = None,
    keys: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
) -> RunFrames:
    """Load the summaries and the learning curves of runs as data frames of pandas.

        summaries, curves = load_runs("CartPole", keys=["algo.optimizer.lr"])
        curves["Evaluation/greedy_mean"].unstack("run").plot()

    Args:
        chosen: filter, as in `shepherd runs`: group, sweep, folder, glob, or a word in the name, algorithm,
            environment, group or status; "" selects all runs.
        runs: folder that is searched for runs; None: the default folder of runs (`runs`, or SHEPHERD_RUN_ROOT).
        keys: config keys that become columns of the summaries.
        metrics: metrics in the curves; None: all metrics.

    Returns:
        Two data frames, `summaries` with one row for each run and `curves` with one column for each metric
        (`flows.runs.frames.RunFrames`).

    Raises:
        UserError: If the filter selects no run, or no run has one of the config keys.
    """
    from flows.runs.frames import load_frames  # every command imports flows first
    from flows.settings import run_root  # every command imports flows first

    return load_frames(chosen, run_root() if runs is None else str(runs), keys, metrics)


def main(function: Callable[[Any], Any] | None = None, *, config_name: str = "config") -> Any:
    """Decorate a script's main function, as a replacement for `hydra.main`.

    The main function takes the config as its argument; the decorated function takes none. The config is composed from
    the script's command line. It has the format of SheepRL's configs: `_target_` keys name classes, and interpolations
    are not resolved. If the config has a mistake, the script prints a one-line message and exits with code 2.

    Args:
        function: the script's main function; omitted if the decorator is used as `@main(config_name=...)`.
        config_name: "config" for a script that trains; its command line is that of `shepherd train`. "eval_config" for
            a script that calls `evaluation`; its command line contains `checkpoint_path=...`.

    Returns:
        The decorated function; if `function` is None, a decorator.
    """
    from flows.cli.script import main as script_main  # every command imports flows first

    def decorate(function: Callable[[Any], Any]) -> Callable[[], Any]:
        return script_main(function, config_name)

    return decorate if function is None else decorate(function)


def run(cfg: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train from a script, like `sheeprl.run`.

    Training takes place in a separate process, the trainer. If the environment or the algorithm is registered by the
    script or by a package that it imports, the registering module is recorded as a plugin of the run, and the trainer
    imports it.

    Args:
        cfg: complete config, from `main` or `hydra.main`; None = compose the config from the script's command line.

    Returns:
        The summary of the run, with its results.

    Raises:
        UserError: If the config has mistakes.
    """
    from flows.cli.script import run as train  # every command imports flows first

    return train(cfg)


def evaluation(cfg: Mapping[str, Any], episodes: int = 100) -> None:
    """Evaluate a checkpoint from a script, like `sheeprl.evaluation`, and print the returns.

    Args:
        cfg: the config from `main(config_name="eval_config")`. `checkpoint_path` is a run directory or a checkpoint of
            this project; `env.capture_video` selects if a video is recorded.
        episodes: number of episodes with greedy actions. The same number is played with sampled actions.

    Raises:
        UserError: If there is no such checkpoint.
    """
    from flows.cli.script import evaluation as evaluate  # every command imports flows first

    evaluate(cfg, episodes)


__all__ = ["evaluation", "export", "load_part", "load_policy", "load_runs", "load_world_model", "main", "run"]
