"""evaluate: judge the policy that is being trained; at the end the run's chosen checkpoint."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from flows.runs.series import write_results
from flows.runs.trainer import trainer_for
from flows.runs.with_torch import with_torch
from rlcore.algorithms.dreamer.world_keys import WORLD
from rlcore.config.groups import RunConfig
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory


def evaluate(run: RunDirectory, policy_steps: int | None = None, *, final: bool = False) -> dict[str, Any] | None:
    """Judge the policy that is being trained; gives policy_steps and the figures without the single returns.

    None where the trainer had died and another one stands elsewhere than at `policy_steps`: train again. `final`: judge
    the chosen checkpoint, greedily and sampling, and leave evaluations/, media/, summary.json and results/.
    """
    made: dict[str, Any] = {}
    if final:
        from flows.stages.summary import summary  # numpy, which who only drives a trainer need not wait for

        event = _finally(run)
        write_results(run, summary(run))
        made["evaluation"] = str(run.evaluations / f"{event['policy_steps']}.json")
    else:
        trainer = trainer_for(run)
        if policy_steps not in (None, trainer.policy_steps):
            return None
        event = trainer.evaluate()
        config = config_of(run)
        _film(run, config)
        _dream(run, config, "latest", ("every",))
    emit("evaluation", event)
    for mode in ("greedy", "stochastic"):
        if event.get(mode):
            made[mode] = {key: value for key, value in event[mode].items() if key != "returns"}
    return {"policy_steps": event["policy_steps"], "final": final, **made}


def _finally(run: RunDirectory) -> dict[str, Any]:
    """The last evaluation, by the trainer where this process drives one: an environment that hangs is ended there."""
    from rlcore.store.checkpoint import choose  # numpy

    choose(run)  # refuses a run without one before anything is said
    config = config_of(run)
    episodes = config.final_episodes
    emit("stage", {"doing": f"last evaluation: {episodes} episodes, greedy and sampling, on seeds of their own"})
    _dream(run, config, choose(run).name, ("every", "last"))
    return with_torch(run, "rlcore.evaluation.final.final_evaluation", doing="last evaluation")


def _film(run: RunDirectory, config: RunConfig) -> None:
    """Record an episode of the newest checkpoint, where films while training are asked for: beside training, as dreams.

    Without a checkpoint there is none. That of the last evaluation is a part of it.
    """
    from rlcore.store.checkpoint import newest_good  # numpy

    if config.env.capture_video and config.evaluation.film == "every" and (path := newest_good(run.checkpoints)):
        with_torch(run, "rlcore.evaluation.video.record_video", str(path), f"policy_{path.name}.mp4")


def _dream(run: RunDirectory, config: RunConfig, checkpoint: str, when: tuple[str, ...]) -> None:
    """Leave pictures of what the run's world model expects, where it learns one and they are asked for.

    Of a checkpoint: so they are made beside training, and touch nothing of it. Without one there is none.
    """
    from rlcore.store.checkpoint import newest_good, resolve  # numpy

    if (
        config.evaluation.dream in when
        and WORLD in config.algo.exported_components
        and newest_good(run.checkpoints) is not None
    ):
        path = str(resolve(run, checkpoint))
        with_torch(run, "flows.report.dreams.try_to_draw", path, doing="episodes for the world model")
