"""evaluate: evaluate the current policy during training, and the chosen checkpoint at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.runs.listeners import emit
from flows.runs.series import write_results
from flows.runs.trainer import trainer_for
from flows.runs.with_torch import with_torch
from rlcore.algorithms.dreamer.world_keys import WORLD
from rlcore.config.run import RunConfig
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory


def evaluate(run: RunDirectory, policy_steps: int | None = None, *, final: bool = False) -> dict[str, Any] | None:
    """Evaluate a run's policy and return policy_steps, final, and statistics such as the mean return.

    The result does not contain the returns of single episodes. If `final` is True, the checkpoint that the config
    chooses is evaluated with greedy and sampled actions, and evaluations/, media/, summary.json and results/ are
    written. Otherwise the current policy is evaluated.

    `policy_steps` is the policy step at which the evaluation is expected; None: any. Returns None without evaluating if
    the run is at another step. This happens if the trainer process has died and a new one has resumed from an earlier
    checkpoint. The caller must then train to `policy_steps` again.
    """
    statistics: dict[str, Any] = {}
    if final:
        from flows.stages.summary import summary  # imports numpy, which a process that only drives a trainer can skip

        event = _evaluate_finally(run)
        write_results(run, summary(run))
        statistics["evaluation"] = str(run.evaluations / f"{event['policy_steps']}.json")
    else:
        trainer = trainer_for(run)
        if policy_steps not in (None, trainer.policy_steps):
            return None
        event = trainer.evaluate()
        config = config_of(run)
        _record_video(run, config)
        _dream(run, config, "latest", ("every",))
    emit("evaluation", event)
    for mode in ("greedy", "stochastic"):
        if event.get(mode):
            statistics[mode] = _without_episodes(event[mode])
    return {"policy_steps": event["policy_steps"], "final": final, **statistics}


def _without_episodes(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an evaluation without the numbers of single episodes."""
    kept = {key: value for key, value in result.items() if key not in ("returns", "values")}
    return kept | ({"info": {k: _without_episodes(v) for k, v in kept["info"].items()}} if kept.get("info") else {})


def _evaluate_finally(run: RunDirectory) -> dict[str, Any]:
    """Run the final evaluation and return its event.

    If this process has started a trainer process for the run, the evaluation runs in the trainer process, which can be
    killed if an environment hangs.
    """
    from rlcore.store.checkpoint import choose  # imports numpy

    choose(run)  # raises for a run without a checkpoint before the message below
    config = config_of(run)
    episodes = config.final_episodes
    emit("stage", {"doing": f"final evaluation: {episodes} greedy and {episodes} sampled episodes, on separate seeds"})
    _dream(run, config, choose(run).name, ("every", "last"))
    return with_torch(run, "rlcore.evaluation.final.final_evaluation", doing="final evaluation")


def _record_video(run: RunDirectory, config: RunConfig) -> None:
    """Record a video of the newest checkpoint if `evaluation.film=every`; it does not affect training.

    Without a checkpoint there is no video. The final evaluation records its own video.
    """
    from rlcore.store.checkpoint import newest_good  # imports numpy

    if config.env.capture_video and config.evaluation.film == "every" and (path := newest_good(run.checkpoints)):
        with_torch(run, "rlcore.evaluation.video.record_video", str(path), f"policy_{path.name}.mp4")


def _dream(run: RunDirectory, config: RunConfig, checkpoint: str, when: tuple[str, ...]) -> None:
    """Draw images that the run's world model predicts, if the algorithm learns one and `evaluation.dream` requests it.

    The images are computed from a checkpoint and do not affect training. Without a checkpoint nothing is drawn.
    """
    from rlcore.store.checkpoint import newest_good, resolve  # imports numpy

    if (
        config.evaluation.dream in when
        and WORLD in config.algo.exported_components
        and newest_good(run.checkpoints) is not None
    ):
        path = str(resolve(run, checkpoint))
        with_torch(run, "flows.report.dreams.try_to_draw", path, doing="episodes for the world model")
