"""Runs with neighboring seeds share no random draw; recorded from real runs, not from names of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.envs.vector.single import SingleEnv
from rlcore.nn.policy_head import PolicyHead
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

Drawn = dict[str, list[bytes]]


def drawn(folder: Path, seed: int, env_id: str, monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """All random values of some iterations with 4 environments and of an evaluation, as bytes."""
    seen: Drawn = {"start": [], "evaluation start": [], "noise": [], "order": [], "weights": []}
    training = [True]
    reset, noise, minibatches = SingleEnv.reset, PolicyHead.noise, ppo.minibatches

    def watched_reset(self: SingleEnv, seed: int | None, obs: dict[str, np.ndarray], row: int, *others: Any) -> None:
        reset(self, seed, obs, row, *others)
        seen["start" if training[0] else "evaluation start"].append(obs["state"][row].tobytes())

    def watched_noise(self: PolicyHead, *arguments: Any) -> torch.Tensor:
        drawn_noise = noise(self, *arguments)
        seen["noise"].extend(row.numpy().tobytes() for row in drawn_noise)
        return drawn_noise

    def watched_minibatches(*arguments: Any) -> Any:
        rows, weight = minibatches(*arguments)
        seen["order"].extend(row.numpy().tobytes() for row in rows.flatten(0, 1))
        return rows, weight

    with monkeypatch.context() as patch:
        patch.setattr(SingleEnv, "reset", watched_reset)
        patch.setattr(PolicyHead, "noise", watched_noise)
        patch.setattr(ppo, "minibatches", watched_minibatches)
        run = prepare(folder, env_id, seed=seed, total_steps=640, env__num_envs=4, env__max_episode_steps=20)
        seen["start"].clear()  # from the measurement of the environment card
        session = RunTrainer(run)
        seen["weights"].extend(p.detach().numpy().tobytes() for p in session.learner.agent.parameters() if p.dim() == 2)
        while not session.advance(lambda facts: None).done:
            training[0] = True
        training[0] = False
        session.evaluate()
        session.close()
    return seen


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Hopper-v5"])  # one stream per environment; one per episode
def test_neighboring_seeds_share_no_draws_in_training(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (drawn(tmp_path / str(seed), seed, env_id, monkeypatch) for seed in (0, 1))
    counts = {name: len(values) for name, values in one.items()}
    assert counts["start"] >= 30 and counts["noise"] >= 600 and counts["order"] >= 40, counts
    for name in one:
        # Also within one seed: no two environments, episodes, rows or epochs share a draw.
        everything = one[name] + other[name]
        assert len(set(everything)) == len(everything), name
    starts = [*one["start"], *other["start"]]
    evaluation_starts = [*one["evaluation start"], *other["evaluation start"]]
    assert evaluation_starts and not set(starts) & set(evaluation_starts)
