"""Two ranks learn the same as one rank with all of their environments, with independent noise."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.conformance.several_ranks import InThread, Meeting
from rlcore.functional.distributions import Categoricals
from rlcore.types import Batch, Trajectory
from tests.contract.test_registry import SETTINGS, every_env, on_policy, small
from tests.learning.assembly import Trainer, context


def columns(steps: Trajectory, envs: slice, lead: int) -> Trajectory:
    """Copies of the environments `envs`, which are axis `lead` of each tensor."""

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part(item) for key, item in value.items()}
        return (value[:, envs] if lead else value[envs]).clone() if isinstance(value, Tensor) else value

    names = [field.name for field in dataclasses.fields(steps)]
    return dataclasses.replace(steps, **{name: part(getattr(steps, name)) for name in names})


def cut(batch: Batch, envs: slice) -> Batch:
    return Batch(columns(batch.steps, envs, 1), columns(batch.last, envs, 0), batch.policy_steps)


def batches(training: Trainer, count: int) -> list[Batch]:
    length, before = training.plan.collect_length, training.policy_steps
    return [cut(Batch(*training.collector.collect(length), before + i), slice(None)) for i in range(count)]


def settings(algo: str, **changes: Any) -> dict[str, Any]:
    whole = {"ppo": {"per_rank_batch_size": 10_000}, "ppo_recurrent": {"per_rank_num_batches": 1}}.get(algo, {})
    return SETTINGS[algo] | {"optimizer": {"name": "sgd", "lr": 0.05, "eps": None, "betas": None}} | whole | changes


@on_policy
@every_env
@pytest.mark.parametrize("changes", [{}, {"loss_reduction": "sum"}], ids=["mean", "sum"])
def test_two_ranks_match_one_with_all_environments(algo: str, env_id: str, changes: dict[str, Any]) -> None:
    """Normalizers, advantages, sample weights and clipping are computed over both ranks, whose resets differ."""
    chosen = settings(algo, **changes) | ({"target_kl": 0.02} if algo == "ppo" and not changes else {})
    training = small(algo, env_id, **{k: v for k, v in chosen.items() if k != "name"})
    wide = dataclasses.replace(training.config, env=dataclasses.replace(training.config.env, num_envs=6))
    training.close()
    training = Trainer(wide, training.card)
    data = batches(training, 3)
    halves = (slice(3), slice(3, 6))
    ends = [(batch.steps.terminated | batch.steps.truncated)[:, envs].sum().item() for batch in data for envs in halves]
    assert env_id != "CartPole-v1" or len(set(ends)) > 1

    def learned(num_envs: int, envs: slice, ranks: Any = None) -> Any:
        context_ = context(chosen, training.envs.spec, num_envs, ranks=ranks)
        learner, _, _ = ALGORITHMS[algo].build(context_)
        return learner, [learner.update(cut(batch, envs), np.random.default_rng(0)) for batch in data]

    one, logged = learned(6, slice(6))
    meeting, found = Meeting(2), {}

    def rank(number: int) -> None:
        found[number] = learned(3, halves[number], InThread(meeting, number))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first, metrics), (second, _) = found[0], found[1]
    assert first.updates == second.updates == one.updates
    for name, weight in one.agent.named_parameters():
        mine, other = (dict(learner.agent.named_parameters())[name] for learner in (first, second))
        torch.testing.assert_close(mine, weight, rtol=0, atol=1e-6, msg=name)
        assert torch.equal(mine, other), name
    for update, expected in zip(metrics, logged, strict=True):
        assert float(update["Info/grad_norm"]) == pytest.approx(float(expected["Info/grad_norm"]), rel=1e-4)


def test_two_ranks_sample_independent_actions() -> None:
    uniform = Categoricals(torch.zeros(4000, 5), (5,))
    noises = [streams.generator(0, "policy", rank).standard_exponential((4000, 5), dtype=np.float32) for rank in (0, 1)]
    first, second = (uniform.sample(torch.from_numpy(noise)) for noise in noises)
    assert (first == second).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_sac_metrics_are_means_over_ranks() -> None:
    training = small("sac", "Pendulum-v1")
    data, meeting, found = Batch(SimpleNamespace(obs={}), None, 0), Meeting(2), {}

    def rank(number: int) -> None:
        context_ = context(SETTINGS["sac"], training.envs.spec, 3, ranks=InThread(meeting, number))
        learner, _, _ = ALGORITHMS["sac"].build(context_)
        learner.step = lambda *args, **kwargs: {"Info/q": torch.tensor(2.0 + number)}
        found[number] = learner.update(data, np.random.default_rng(0))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: {"Info/q": 2.5}, 1: {"Info/q": 2.5}}
