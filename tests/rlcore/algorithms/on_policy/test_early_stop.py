"""KL stop of PPO as a flag on the device, compared with a loop that ends at the flag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.ppo import learner as module
from rlcore.algorithms.on_policy.ppo.early_stop import average_steps
from rlcore.data.minibatches import split
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.types import Batch, Trajectory
from tests.learning.assembly import context

LENGTH, ENVS = 24, 3
ALL = 4 * 72 // 8  # gradient steps of an update without a stop
SPEC = EnvSpec("probe", {"state": ArraySpec((4,), "float32")}, ActionSpec("Discrete", (), "int64", nvec=(2,)))
SETTINGS = {
    "name": "ppo",
    "total_steps": 1000,
    "rollout_steps": LENGTH,
    "per_rank_batch_size": 8,
    "update_epochs": 4,
    "max_grad_norm": 0.5,
    "dense_units": 8,
}


def make_learner(target_kl: float, **changes: Any) -> module.Learner:
    adam = {"optimizer": {"name": "adam", "lr": 0.002}}
    return module.Learner(context(SETTINGS | adam | {"target_kl": target_kl} | changes, SPEC, ENVS))


def rollout(learner: module.Learner) -> Batch:
    rng = np.random.default_rng(1)
    obs = torch.from_numpy(rng.standard_normal((LENGTH + 1, ENVS, 4), dtype=np.float32))
    action = torch.from_numpy(rng.integers(0, 2, (LENGTH + 1, ENVS, 1)))
    with torch.no_grad():
        policy, value = learner.agent({"state": obs[:-1].flatten(0, 1)})
        logprob = policy.logprob(action[:-1].flatten(0, 1))
    extras = {"logprob": logprob.view(LENGTH, ENVS), "value": value.view(LENGTH, ENVS)}
    none = torch.zeros(LENGTH + 1, ENVS, dtype=torch.bool)
    steps = Trajectory({"state": obs[:-1]}, action[:-1], obs[:-1, :, 0], *[none[:-1]] * 3, extras)
    return Batch(steps, Trajectory({"state": obs[-1]}, action[-1], obs[-1, :, 0], *[none[-1]] * 3), 0)


def update_until_stop(learner: module.Learner, batch: Batch, rng: np.random.Generator) -> dict[str, list[float]]:
    """Take the gradient steps of an update in a loop that ends at the KL stop; return the metrics of each step."""
    samples, logged = learner.samples(batch), dict[str, list[float]]()
    rows, weight = learner.draw(samples.weight.unflatten(0, (LENGTH, ENVS)), rng)
    size, limit = learner.config.accumulate_minibatches or rows.shape[1], 1.5 * (learner.config.target_kl or 0.0)
    for each in zip(rows, samples.advantage[rows], weight, strict=True):
        for group in split(samples.at(*each), size):
            found = [learner.optimizer.accumulate(part, {"clip_coef": 0.2, "ent_coef": 0.0}) for part in group]
            for name in found[0]:
                logged.setdefault(name, []).append(float(torch.stack([means[name] for means in found]).sum() / size))
            if logged["Info/approx_kl"][-1] > limit:
                learner.optimizer.drop()
                return logged
            logged.setdefault("Info/grad_norm", []).append(float(learner.optimizer.apply()))
    return logged


def state(learner: module.Learner) -> tuple[bytes, bytes]:
    return nested_state.encode({"agent": learner.agent.state_dict(), "optimizer": learner.optimizer.state_dict()})


@pytest.mark.parametrize("accumulate", [1, 3])
def test_update_with_flag_equals_loop_that_ends(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"accumulate_minibatches": accumulate}
    oracle, reading, flagged = (make_learner(0.004, **changes) for _ in range(3))
    for seed in range(2):
        logged = update_until_stop(oracle, rollout(oracle), np.random.default_rng(seed))
        taken = len(logged["Info/grad_norm"])
        assert 1 < taken < ALL // accumulate, "the target of this test must stop an update in the middle"
        updates, metrics = flagged.updates, [reading.update(rollout(reading), np.random.default_rng(seed))]
        with monkeypatch.context() as patch:
            patch.setattr(module, "ends_loop", lambda stop, reads: False)
            metrics.append(flagged.update(rollout(flagged), np.random.default_rng(seed)))
        for learner, found in zip((reading, flagged), metrics, strict=True):
            assert state(learner) == state(oracle)
            assert learner.updates == updates + taken
            for name, values in logged.items():
                assert float(found[name]) == pytest.approx(np.mean(values), rel=1e-5, abs=1e-8), name


def test_steps_after_the_stop_are_not_counted() -> None:
    # The second of four steps exceeds the limit: one step was taken, and two steps are logged.
    steps = [{"stop": torch.tensor(k > 0), "Info/grad_norm": torch.tensor(10.0 + k)} for k in range(4)]
    losses = [1.0, 3.0, torch.nan, 7.0]
    found = average_steps([step | {"loss": torch.tensor(loss)} for step, loss in zip(steps, losses, strict=True)])
    assert {name: float(value) for name, value in found.items()} == {"Info/grad_norm": 10.0, "loss": 2.0, "steps": 1.0}


def test_without_target_all_steps_are_counted() -> None:
    found = average_steps([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
    assert {name: float(value) for name, value in found.items()} == {"loss": 1.5, "steps": 2.0}
    assert average_steps([]) == {"steps": torch.tensor(0)}
