"""Acting as one traced function says what the agent says, whatever changed in the agent since."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import DistributionConfig, EnvConfig, RunConfig
from rlcore.config.schema import build
from rlcore.data.carry import tensors
from rlcore.functional.noise import Noise
from rlcore.optim import package
from rlcore.train.training import Training
from tests.probes import q_learning


@pytest.fixture(autouse=True)
def as_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The traced graph itself in the place of its machine code, whose numbers tests/contract holds against it."""

    def as_graph(graph: Any, *_: Any) -> Any:
        return lambda inputs: list(graph(*inputs))

    monkeypatch.setattr(package, "compiled", as_graph)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))


def training(env_id: str, compiled: bool, algo: str = "ppo", distribution: str = "auto", **settings: Any) -> Training:
    small: dict[str, Any] = {"total_steps": 10_000}
    small |= {"normalize_obs": True, "dense_units": 8, "rollout_steps": 16} if algo == "ppo" else {}
    config = RunConfig(
        algo=build(ALGORITHMS[algo].Config, small | settings, "algo."),
        env=EnvConfig(id=env_id, num_envs=3, max_episode_steps=12),
        distribution=DistributionConfig(type=distribution),
        seed=0,
    )
    return Training(config, compiled=compiled)


def same(plain: Training, compiled: Training) -> None:
    for _ in range(3):
        (one, last), (two, end) = (t.collector.collect(t.plan.collect_length) for t in (plain, compiled))
        assert compiled.collector._acting is not None
        for a, b in ((one.action, two.action), *((one.extras[k], two.extras[k]) for k in one.extras)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
        for a, b in zip(tensors(last.carry), tensors(end.carry), strict=True):
            assert torch.equal(a, b)
        for each, steps, arrival in ((plain, one, last), (compiled, two, end)):
            each.buffer.extend(steps, arrival)
            each.update()
        with torch.no_grad():  # compiled steps round otherwise: acting alone is compared
            for p, q in zip(plain.learner.agent.parameters(), compiled.learner.agent.parameters(), strict=True):
                q.copy_(p)


@pytest.mark.parametrize(
    ("env_id", "distribution"),
    [("CartPole-v1", "auto"), ("Pendulum-v1", "auto"), ("Pendulum-v1", "tanh_normal"), ("FrozenLake-v1", "auto")],
)
def test_what_is_traced_acts_as_the_agent_does_after_every_update(env_id: str, distribution: str) -> None:
    same(*(training(env_id, compiled, distribution=distribution) for compiled in (False, True)))


def test_a_nested_carry_and_other_noise_go_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    settings: dict[str, Any] = {"algo": "q_learning", "learning_starts": 0}
    same(*(training("CartPole-v1", compiled, **settings) for compiled in (False, True)))


def test_noise_comes_from_the_agents_stream_and_leaves_it_where_the_agent_would() -> None:
    plain, compiled = (training("CartPole-v1", each) for each in (False, True))
    for each in (plain, compiled):
        each.collect()
    assert plain.collector.rng.state_dict() == compiled.collector.rng.state_dict()


def test_an_agent_that_cannot_be_traced_acts_as_it_is_written_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(package, "compiled", refusing)
    with caplog.at_level(logging.WARNING):
        one = training("CartPole-v1", True)
        steps, _ = one.collector.collect(4)
    assert one.collector._acting is None and steps.action.shape == (4, 3, 1)
    assert "acting runs as it is written, not compiled: a value is wanted" in caplog.text


def refusing(*_: Any) -> Any:
    raise RuntimeError("a value is wanted")


def test_parameters_that_are_replaced_are_read_anew() -> None:
    one = training("CartPole-v1", True)
    one.collector.collect(4)
    with torch.no_grad():
        for parameter in one.learner.agent.critic.parameters():
            parameter.data = torch.zeros_like(parameter)
    steps, _ = one.collector.collect(4)
    assert not steps.extras["value"].any()


def test_the_stand_in_for_noise_has_every_kind() -> None:
    from rlcore.train.acting import Given, Recorder

    kinds = {name for name in dir(Noise) if name in ("normal", "exponential", "uniform")}
    recorder, given = Recorder(), Given(iter([torch.zeros(6)] * 3))
    for kind in sorted(kinds):
        getattr(recorder, kind)(2, 3)
        assert getattr(given, kind)(2, 3).shape == (2, 3)
    assert recorder.draws == [(kind, (2, 3)) for kind in sorted(kinds)] and len(kinds) == 3
