"""Composite actions (Dict and Tuple action spaces) in batched environments, compared with a single environment."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import machine_code
from rlcore.config.build import build as build_config
from rlcore.conformance import check_batched_env
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.exact.recording import random_action
from rlcore.envs.wrappers import VectorAction
from rlcore.evaluation.policy import load_policy
from rlcore.store.checkpoint import nested_state
from rlcore.train.build import build
from rlcore.train.trainer import Trainer
from tests.graphs import run_graphs
from tests.learning.assembly import compiler_of
from tests.probes.envs import CompositeActions


class Arm(BatchedEnv):
    """`CompositeActions` as a batched environment."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = CompositeActions().action_space
    max_episode_steps = 8

    def reset(self, config: Any) -> torch.Tensor:
        self.state = {"seen": self.random.integers(2).float()}
        return self.state["seen"][:, None]

    def step(self, action: dict[str, Any]) -> Transition:
        (box, digit), keys, lamps, seen = action["arm"], action["keys"], action["lamps"], self.state["seen"]
        assert digit.dtype == keys.dtype == torch.int64 and lamps.dtype == torch.int8 and box.shape[1:] == (3,)
        fits = [digit == 5 + seen, keys[:, 1] == 2 * seen, lamps[:, 0] == seen]
        reward = sum((fit.float() for fit in fits), 1 - (box[:, 0] - seen).abs().clamp(max=1.0))
        self.state = {"seen": self.random.integers(2).float()}
        return self.state["seen"][:, None], reward, torch.zeros_like(seen, dtype=torch.bool)


COMMON = {"total_steps": 640, "rollout_steps": 8, "dense_units": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"per_rank_batch_size": 16},
    "a2c": {},
    "ppo_recurrent": {"per_rank_sequence_length": 4, "rnn": {"lstm": {"hidden_size": 8}}},
}


def trainer(algo: str = "ppo") -> Trainer:
    return build(build_config(ALGORITHMS[algo].Config, COMMON | SETTINGS[algo], "algo."), Arm, num_envs=4)


def test_rewards_equal_those_of_single_environment() -> None:
    envs, rng = trainer().envs, streams.generator(0, "probe")
    seen, single = envs.reset().obs["state"][:, 0].tolist(), CompositeActions()
    with closing(VectorAction(single)) as one:
        one.reset(seed=0)
        for _ in range(30):
            actions = [np.asarray(random_action(envs.spec, rng, {})) for _ in seen]
            step = envs.step(torch.from_numpy(np.stack(actions)))
            expected = list[float]()
            for place, action in zip(seen, actions, strict=True):
                single.seen = place
                expected.append(float(one.step(action)[1]))
            opens = step.is_first.tolist()
            wanted = [0.0 if opened else reward for opened, reward in zip(opens, expected, strict=True)]
            np.testing.assert_allclose(step.reward.numpy(), wanted, rtol=1e-6)
            seen = step.obs["state"][:, 0].tolist()


def test_environment_passes_checks_of_make_env() -> None:
    card = check_batched_env(Arm)
    assert card["tier"] == "snapshot" and card["spec"]["action"]["space"] == "Composite"


def test_traced_step_equals_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "build", run_graphs)
    monkeypatch.setattr(machine_code, "find", lambda *_: None)  # no machine code from the cache
    eager, traced = trainer(), trainer()
    for one in (eager, traced):
        one.envs.reset()
    envs: Any = traced.envs
    envs.compile(compiler_of(traced.config, envs.spec, 4))
    assert envs.compiled
    rng = streams.generator(0, "probe")
    for _ in range(20):
        action = torch.from_numpy(np.stack([np.asarray(random_action(envs.spec, rng, {})) for _ in range(4)]))
        one, other = eager.envs.step(action), envs.step(action)
        torch.testing.assert_close((other.reward, other.obs), (one.reward, one.obs))
        assert torch.equal(other.is_first, one.is_first)
    assert eager.envs.pop_episodes() == envs.pop_episodes()


@pytest.mark.parametrize("algo", SETTINGS)
def test_training_resumes_to_same_bits_and_policy_acts(algo: str, tmp_path: Path) -> None:
    whole, first = trainer(algo), trainer(algo)
    for one in (whole, first):
        one.collect()
        one.update()
    again = trainer(algo).load(first.save(tmp_path))
    for one in (whole, again):
        one.collect()
        one.update()
    assert nested_state.encode(again.state_dict()) == nested_state.encode(whole.state_dict())
    evaluated = whole.evaluate(3)
    assert len(evaluated["returns"]) == 3 and evaluated["mean_length"] == 8
    action, _ = load_policy(whole.save(tmp_path / "last")).step(np.zeros((5, 1), np.float32))
    assert action.shape == (5, 8)
