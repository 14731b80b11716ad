"""Stop conditions of a resumed run."""

from __future__ import annotations

from pathlib import Path

from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

SAC = {
    "algo": "sac",
    "algo__hidden_size": 8,
    "algo__per_rank_batch_size": 4,
    "algo__learning_starts": 10,
    "algo__replay_ratio": 0.25,
    "env__num_envs": 1,
    "evaluation__every": 10_000,
    "checkpoint__every": 101,
}


def test_resumed_run_waits_for_metrics_of_gradient_steps(tmp_path: Path) -> None:
    """The first iteration after the checkpoint has no gradient step, and the run has more than 20 before it."""
    stop = [{"lower_bound": {"metric": "Loss/value_loss", "value": -1.0}}]
    run = prepare(tmp_path / "run", "Pendulum-v1", 106, **SAC, stop=stop)
    first = RunTrainer(run)
    first.advance(lambda facts: None)
    first.save()
    first.close()
    assert first.policy_steps == 101 and first.learner.updates > 20
    updates: list[int] = []
    resumed = RunTrainer(run)
    boundary = resumed.advance(lambda facts: updates.append(facts["updates"]))
    resumed.close()
    assert boundary.reason == "finished" and updates[0] == first.learner.updates < updates[-1]
