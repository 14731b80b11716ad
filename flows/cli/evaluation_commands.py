"""Commands `shepherd evaluate`, `enjoy`, `collect`, `export` and `dream`, which use a trained policy."""

from __future__ import annotations

import os
from pathlib import Path

from flows.cli.progress import show_progress
from flows.report.command_lines import short_path
from flows.runs.listeners import episode_reporter
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.system.printable import print_safely


def evaluate(source: str, checkpoint: str | None, episodes: int, round: int, video: bool) -> None:
    """Evaluate a policy, print the results and write them to the run directory.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        checkpoint: latest, best or a number of policy steps; None for the best checkpoint, or the latest one if no
            best checkpoint is known.
        episodes: number of episodes with greedy actions; as many further episodes are played with sampled actions.
        round: number that selects the set of environment seeds; different numbers give different seeds.
        video: also record a video of one greedy episode.
    """
    from flows.report.tables import evaluation_table  # rich
    from flows.report.terminal import show  # rich
    from rlcore.evaluation.final import evaluate_checkpoint  # torch
    from rlcore.evaluation.video import record_video
    from rlcore.store.checkpoint import manifest  # numpy

    run, path = locate(source, checkpoint)
    _compute_as(run)
    results = {}
    with show_progress(run):
        for mode in ("greedy", "stochastic"):
            telling = episode_reporter(f"evaluation, {mode}")
            results[mode] = evaluate_checkpoint(
                run, path, episodes, greedy=mode == "greedy", round=round, on_progress=telling
            )
    recorded = record_video(run, path, "evaluation.mp4") if video else None
    steps = manifest(path)["policy_steps"]
    written = run.evaluations / f"{steps}-round{round}-{episodes}.json"
    place = {"policy_steps": steps, "checkpoint": str(path.relative_to(run.path))}
    write_json(written, place | {"round": round, "video": recorded} | results)
    show(evaluation_table(results, run.read_baseline(), short_path(path)))
    where = f", video {short_path(run.path / recorded)}" if recorded else ""
    print_safely(f"written to {short_path(written)}{where}")


def collect(source: str, minari: str, episodes: int, checkpoint: str | None, actions: str, round: int) -> None:
    """Play episodes with a policy and write them as a Minari dataset.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        minari: name of the new dataset.
        episodes: number of episodes.
        checkpoint: latest, best or a number of policy steps; None for the best checkpoint, or the latest one if no
            best checkpoint is known.
        actions: "sampled" from the policy, "greedy" (the most likely actions) or "random".
        round: number that selects the set of environment seeds; different numbers give different seeds.
    """
    from rlcore.store.minari_datasets import check_name  # gymnasium

    check_name(minari)
    run, path = locate(source, checkpoint)
    from rlcore.evaluation.collection import collect_episodes  # torch

    _compute_as(run)
    with show_progress(run):
        on_progress = episode_reporter("episodes")
        result = collect_episodes(run, path, minari, episodes, actions=actions, round=round, on_progress=on_progress)
    print_safely(
        f"{result['episodes']} episodes, {result['rows']:,} actions, mean return {result['mean']:g}: {result['folder']}"
    )
    print_safely(f"to fill a replay buffer with it: buffer.load_from=minari:{minari}")


def export(source: str, onnx: str | None, torch: str | None, checkpoint: str | None) -> None:
    """Write a policy to files that run without Shepherd, and print their inputs and outputs.

    Args:
        source: run directory, checkpoint directory, models:/ URI or policy folder.
        onnx: path of the ONNX file; None: do not write one.
        torch: path of the file for torch.export.load; None: do not write one.
        checkpoint: latest, best or a number of policy steps; None for the best checkpoint, or the latest one if no
            best checkpoint is known.
    """
    from flows.registry.models import local_path  # MLflow, if it is a URI
    from rlcore.evaluation.export import check_destinations, export_files  # torch
    from rlcore.evaluation.policy import load_policy  # torch

    check_destinations(onnx, torch)
    policy = load_policy(local_path(source) if checkpoint is None else locate(source, checkpoint)[1])
    files = export_files(policy, onnx, torch)
    for kind in ("inputs", "outputs"):
        columns = getattr(files[0], kind)
        print_safely(f"{kind} (N = number of observations):", *(f"  {column}" for column in columns), sep="\n")
    for file in files:
        rows, undecided, difference = file.agreement
        ignored = f", {undecided} more ignored because rounding errors decide them" if undecided else ""
        print_safely(
            f"written to {short_path(file.path)} ({file.path.stat().st_size / 1e6:.2g} MB); "
            f"compared with the policy on {rows} random observations: largest difference {difference:.1g}{ignored}"
        )


def enjoy(source: str, episodes: int) -> None:
    """Show a policy playing in a window, or record a video if there is no display."""
    from rlcore.evaluation.video import record_checkpoint, show

    run, path = locate(source)
    _compute_as(run)
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        recorded = record_checkpoint(run, path, "enjoy.mp4", episodes)
        print_safely(f"no display found; video written to {short_path(run.path / recorded)}")
        return
    for number, (ret, length) in enumerate(show(run, path, episodes), 1):
        print_safely(f"episode {number}: return {ret:g} in {length} steps")


def dream(source: str, checkpoint: str | None) -> None:
    """Write pictures and videos of the predictions of a world model.

    They show how the model reconstructs recorded episodes, and trajectories that it imagines.
    """
    from flows.report.dreams import picture_dreams  # torch

    run, path = locate(source, checkpoint)
    _compute_as(run)
    with show_progress(run):
        result = picture_dreams(run, path, episode_reporter("episodes for the world model"))
    print_safely(f"dreams of {short_path(path)}:", *(f"  {short_path(run.path / name)}" for name in result), sep="\n")


def _compute_as(run: RunDirectory) -> None:
    """Set torch's number of threads and precision to the values in the run's config, which training also used."""
    from rlcore.train.fabric import set_switches  # torch

    set_switches(config_of(run))


def locate(source: str, checkpoint: str | None = None) -> tuple[RunDirectory, Path]:
    """Return the run and the checkpoint directory to which the command-line argument SOURCE refers.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        checkpoint: latest, best or a number of policy steps; None for the best checkpoint, or the latest one if no
            best checkpoint is known.

    Returns:
        The run and the path of the checkpoint.

    Raises:
        UserError: `source` or the checkpoint does not exist or is damaged, or `checkpoint` is given although `source`
            is already a checkpoint or a registered model.
    """
    from rlcore.store import checkpoint as checkpoints  # numpy

    path, registered = Path(source).absolute(), source.startswith("models:/")
    if checkpoint is not None and (registered or (path / "manifest.json").exists()):
        what = "a registered model" if registered else "a checkpoint"
        raise UserError(
            f"--checkpoint {checkpoint}: {source} is already {what}; leave --checkpoint out, or give the run directory"
        )
    if registered:
        from flows.registry.models import run_of  # MLflow

        path = run_of(source)
    if not (path / "manifest.json").exists():
        run = RunDirectory.existing(path)
        return run, checkpoints.choose(run) if checkpoint is None else checkpoints.resolve(run, checkpoint)
    if wrong := checkpoints.damage(path):
        raise UserError(f"checkpoint {source}: {wrong}")
    return RunDirectory.of_checkpoint(path), path
