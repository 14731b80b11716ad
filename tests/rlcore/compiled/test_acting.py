"""Compiled acting gives the actions of the agent, also after the agent has changed."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.actor_critic import ActorCritic as Agent
from rlcore.compiled import machine_code
from rlcore.config.build import build
from rlcore.config.groups import DistributionConfig, EnvConfig
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.functional.noise import Drawn, Noise, Recorder
from rlcore.functional.tree import name_leaves
from rlcore.store.checkpoint import nested_state
from rlcore.train.trainer import Trainer
from tests.graphs import run_graphs
from tests.probes import q_learning, recurrent
from tests.soaking import always, heavy

pytestmark = heavy


@pytest.fixture(autouse=True)
def run_as_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the traced graph instead of machine code; tests/contract compares the two."""
    monkeypatch.setattr(machine_code, "build", run_graphs)
    monkeypatch.setattr("rlcore.train.trainer.warm_up", lambda *_: None)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))


def training(env_id: str, compiled: bool, algo: str = "ppo", distribution: str = "auto", **settings: Any) -> Trainer:
    small: dict[str, Any] = {"total_steps": 10_000}
    small |= {"normalize_obs": True, "dense_units": 8, "rollout_steps": 16} if algo == "ppo" else {}
    config = RunConfig(
        algo=build(ALGORITHMS[algo].Config, small | settings, "algo."),
        env=EnvConfig(id=env_id, num_envs=3, max_episode_steps=12),
        distribution=DistributionConfig(type=distribution),
        seed=0,
    )
    return Trainer(config, compiled=compiled)


def assert_same_acting(plain: Trainer, compiled: Trainer) -> None:
    for _ in range(3):
        (one, last), (two, end) = (t.collector.collect(t.plan.collect_length) for t in (plain, compiled))
        assert compiled.collector._acting is not None
        for a, b in ((one.action, two.action), *((one.extras[k], two.extras[k]) for k in one.extras)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
        held = name_leaves(end.carry)
        assert name_leaves(last.carry).keys() == held.keys()
        assert all(torch.equal(part, held[name]) for name, part in name_leaves(last.carry).items())
        for each, steps, arrival in ((plain, one, last), (compiled, two, end)):
            each.buffer.extend(steps, arrival)
            for batch in each.buffer.batches(each._due):
                each.learner.update(batch, each.rng)
        with torch.no_grad():  # compiled updates round differently, and only acting is compared here
            for p, q in zip(plain.learner.agent.parameters(), compiled.learner.agent.parameters(), strict=True):
                q.copy_(p)


@pytest.mark.parametrize(
    ("env_id", "distribution"),
    [("CartPole-v1", "auto"), ("Pendulum-v1", "auto"), ("Pendulum-v1", "tanh_normal"), ("FrozenLake-v1", "auto")],
)
def test_compiled_acting_matches_agent_after_updates(env_id: str, distribution: str) -> None:
    assert_same_acting(*(training(env_id, compiled, distribution=distribution) for compiled in (False, True)))


def test_compiled_acting_supports_nested_carry_and_other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    settings: dict[str, Any] = {"algo": "q_learning", "learning_starts": 0}
    assert_same_acting(*(training("CartPole-v1", compiled, **settings) for compiled in (False, True)))


def test_compiled_acting_keeps_carry_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent.use(monkeypatch, recurrent.TwoCounts)
    settings: dict[str, Any] = {"algo": "q_learning", "learning_starts": 0}
    assert_same_acting(*(training("CartPole-v1", compiled, **settings) for compiled in (False, True)))


@always
def test_compiled_acting_advances_noise_stream_like_agent() -> None:
    plain, compiled = (training("CartPole-v1", each) for each in (False, True))
    for each in (plain, compiled):
        each.collect()
    assert plain.collector.rng.state_dict() == compiled.collector.rng.state_dict()


ACT = Agent.act


def untraceable(self: Agent, carry: Any, obs: Any, *arguments: Any) -> Any:
    assert float(obs["state"].sum()) < 1e6  # tracing has no values, so float() fails
    return ACT(self, carry, obs, *arguments)


@always
def test_untraceable_agent_acts_eagerly_with_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Agent, "act", untraceable)
    with caplog.at_level(logging.WARNING):
        one = training("CartPole-v1", True)
        steps, _ = one.collector.collect(4)
    assert one.collector.compiled is False and steps.action.shape == (4, 3, 1)
    assert "policy inference is not compiled and runs as eager code: " in caplog.text


def test_resumed_run_keeps_acting_compiled_or_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = training("CartPole-v1", True)
    traced.collector.collect(4)
    monkeypatch.setattr(Agent, "act", untraceable)
    written = training("CartPole-v1", True)
    written.collector.collect(4)
    states = [nested_state.decode(*nested_state.encode(t.collector.state_dict())) for t in (traced, written)]
    for late in (False, True):  # load before the first action, or after it
        one = training("CartPole-v1", True)
        if late:
            one.collector.collect(4)
        one.collector.load_state_dict(states[0])
        with pytest.raises(UserError, match=r"began with compiled policy inference, but torch .* cannot trace it now"):
            one.collector.collect(4)
    monkeypatch.setattr(Agent, "act", ACT)  # as on a machine that can trace it
    for late in (False, True):
        one = training("CartPole-v1", True)
        if late:
            one.collector.collect(4)
        one.collector.load_state_dict(states[1])
        one.collector.collect(4)
        assert one.collector.compiled is False and one.collector._acting is None
    one.collector.load_state_dict(
        training("CartPole-v1", True).collector.state_dict()
    )  # a state from before the first action
    assert one.collector.compiled is False


def test_compiled_acting_leaves_out_unregistered_tensor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A learner may replace the tensor; machine code would keep the first one as a constant."""

    def scaled(self: Agent, *arguments: Any) -> Any:
        carry, action, extras = ACT(self, *arguments)
        return carry, action * self.exploration, extras

    monkeypatch.setattr(Agent, "act", scaled)
    one = training("Pendulum-v1", True)
    one.learner.agent.exploration = torch.tensor(2.0)
    assert one.collector.collect(4)[0].action.any()
    one.learner.agent.exploration = torch.tensor(0.0)
    assert not one.collector.collect(4)[0].action.any()
    assert (
        "policy inference reads the tensor 'exploration', which is not a buffer; register it with self.reg"
        in caplog.text
    )
    other = training("Pendulum-v1", True)
    other.learner.agent.register_buffer("exploration", torch.tensor(2.0))
    assert other.collector.collect(4)[0].action.any()
    other.learner.agent.exploration = torch.tensor(0.0)
    assert not other.collector.collect(4)[0].action.any() and other.collector.compiled


def test_compiled_acting_reads_replaced_parameters() -> None:
    one = training("CartPole-v1", True)
    one.collector.collect(4)
    with torch.no_grad():
        for parameter in one.learner.agent.critic.parameters():
            parameter.data = torch.zeros_like(parameter)
    steps, _ = one.collector.collect(4)
    assert not steps.extras["value"].any()


def test_recorder_and_drawn_support_every_noise_kind() -> None:
    """The recorder notes each draw of a noise stream; tracing gets the drawn tensors as inputs."""
    kinds = [name for name, draw in vars(Noise).items() if inspect.isfunction(draw) and returns_a_tensor(draw)]
    recorder, given = Recorder(), Drawn(iter([torch.zeros(6)] * len(kinds)))
    wanted = [(kind, (0.5, 2, 3) if kind == "bernoulli" else (2, 3)) for kind in kinds]
    for kind, arguments in wanted:
        getattr(recorder, kind)(*arguments)
        assert getattr(given, kind)(*arguments).shape == (2, 3)
    assert recorder.draws == wanted
    assert {"normal", "exponential", "uniform", "bernoulli"} <= set(kinds)


def returns_a_tensor(function: Any) -> bool:
    return inspect.signature(function).return_annotation == "Tensor"
