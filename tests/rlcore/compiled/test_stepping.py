"""Compiled steps of batched environments: equal to eager steps up to rounding, saved, resumed, and refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.compiled import machine_code
from rlcore.compiled.package import TracedFunction
from rlcore.compiler import Compiler
from rlcore.config.groups import EnvConfig
from rlcore.envs.batched.classic_control import CartPole, Pendulum
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.suites.own import give
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import UserError
from tests.learning.assembly import compiler_of, context
from tests.soaking import heavy

STEPS, COPIES = 60, 5


def environments(env_id: str = "batched/CartPole-v1") -> BatchedVectorEnv:
    envs = make_vector_env(EnvConfig(id=env_id, max_episode_steps=12), num_envs=COPIES, seed=3)
    envs.reset()
    return envs


def compiler(envs: BatchedVectorEnv) -> Compiler:
    return compiler_of(context({"name": "ppo", "total_steps": 100}, envs.spec).config, envs.spec, COPIES)


def as_graph(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the traced functions instead of compiling them."""
    graphs: list[Any] = []

    def make_once(what: str, function: Any, example: Any, facts: Any) -> Any:
        graphs.append(machine_code.trace(function, example))
        return (lambda inputs: [*graphs[-1](*inputs)]), facts.notes()

    monkeypatch.setattr(machine_code, "make_once", make_once)
    return graphs


def reads(self: CartPole, action: Tensor) -> Any:
    return self.state["values"], self.ones(float(action.sum())), self.state["values"][:, 0] > 9


def actions(envs: BatchedVectorEnv) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    shape = (COPIES, *envs.spec.action.shape)
    if envs.spec.action.dtype == "int64":
        return [torch.randint(0, 2, shape, generator=rng) for _ in range(STEPS)]
    return [torch.rand(shape, generator=rng) for _ in range(STEPS)]


class Pole(CartPole):
    """Environment of a user, whose constructor has an argument that no config contains."""

    def __init__(self, num_envs: int, device: Any = "cpu", gain: float = 1.0) -> None:
        super().__init__(num_envs, device)
        self.gain = gain

    def step(self, action: Tensor) -> Any:
        obs, reward, ended = super().step(action)
        return obs, self.gain * reward, ended


def pole(**arguments: Any) -> BatchedVectorEnv:
    config = EnvConfig(id="pole", wrapper={"_target_": give(functools.partial(Pole, **arguments))})
    envs = make_vector_env(config, num_envs=COPIES, seed=3)
    envs.reset()
    return envs


def file_name(envs: BatchedVectorEnv, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name under which later processes find the machine code of a step."""
    built: list[TracedFunction] = []

    def build(functions: list[TracedFunction]) -> list[Any]:
        built.extend(functions)
        return [lambda inputs: [*functions[0].graph(*inputs)]]

    monkeypatch.setattr(machine_code, "build", build)
    envs.compile(compiler_of(context({"name": "ppo", "total_steps": 100}, environments().spec).config, envs.spec, 5))
    assert envs.compiled
    return built[0].name or built[0].key


def test_cache_key_of_step_depends_on_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (file_name(pole(), monkeypatch) for _ in range(2))
    monkeypatch.setattr(Pole, "step", lambda self, action: CartPole.step(self, 1 - action))
    assert first == again != file_name(pole(), monkeypatch)


def test_cache_key_of_step_depends_on_arguments_of_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (file_name(pole(gain=gain), monkeypatch) for gain in (2.0, 2.0, 3.0))
    assert first == again != other


def test_cache_key_of_step_depends_on_parameters_set_by_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    names, saved = list[str](), list[Any]()
    for length in (0.7, 0.9):
        envs = environments()
        envs.restart({"length": length}, 0)
        names.append(file_name(envs, monkeypatch))
        saved.append(envs.state_dict())
    resumed = environments()
    resumed.load_state_dict(saved[1])
    names += [file_name(resumed, monkeypatch), file_name(environments(), monkeypatch)]
    assert names[1] == names[2] and len({*names}) == 3


def test_step_in_the_cache_needs_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "build", lambda functions: [functions[0].graph])
    calls: list[str] = []
    for stored in (None, b"package"):
        monkeypatch.setattr(machine_code, "find", lambda *_, found=stored: found)
        envs = environments()
        envs.compile(dataclasses.replace(compiler(envs), prepare=lambda: calls.append("warm-up")))
    assert calls == ["warm-up"]


@pytest.mark.parametrize("env_id", ["batched/CartPole-v1", "batched/Pendulum-v1"])
def test_traced_step_equals_eager_step_over_many_episodes(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = as_graph(monkeypatch)
    eager, traced = environments(env_id), environments(env_id)
    traced.compile(compiler(traced))
    assert traced.compiled and len(graphs) == 1
    for action in actions(eager):
        one, other = eager.step(action), traced.step(action)
        for key in ("reward", "terminated", "truncated", "is_first"):
            assert torch.equal(getattr(one, key), getattr(other, key)), key
        assert torch.equal(one.obs["state"], other.obs["state"])
    assert eager.pop_episodes() == traced.pop_episodes() != []


def test_traced_step_draws_parameters_and_follows_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    as_graph(monkeypatch)
    config = {"length": {"uniform": [0.3, 0.9]}, "force": [[0, 5.0], [STEPS, 20.0]]}
    eager, traced = (
        make_vector_env(EnvConfig(id="batched/CartPole-v1", max_episode_steps=12, config=config), num_envs=5, seed=3)
        for _ in range(2)
    )
    for envs in (eager, traced):
        envs.start_rollout(0)
        envs.reset()
    traced.compile(compiler(traced))
    assert traced.compiled
    for index, action in enumerate(actions(eager)):
        if index % 10 == 0:
            eager.start_rollout(index)
            traced.start_rollout(index)
        assert torch.equal(eager.step(action).obs["state"], traced.step(action).obs["state"])
        assert torch.equal(eager.env.config.force, traced.env.config.force)
    assert eager.env.config.force.min() >= 15 and len(eager.env.config.length.unique()) == 5


def test_seed_is_no_constant_of_the_traced_step(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = as_graph(monkeypatch)
    for seed in (0, 1):
        envs = make_vector_env(EnvConfig(id="batched/CartPole-v1"), num_envs=COPIES, seed=seed)
        envs.reset()
        envs.compile(compiler(envs))
    assert graphs[0].code == graphs[1].code and not [*graphs[0].buffers()]


def test_resumed_environments_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    as_graph(monkeypatch)
    first, second = environments(), environments()
    first.compile(compiler(first))
    second.load_state_dict(first.state_dict())
    second.compile(compiler(second))
    assert second.compiled
    monkeypatch.setattr(CartPole, "step", reads)
    third, fourth = environments(), environments()
    third.compile(compiler(third))
    fourth.load_state_dict(third.state_dict())
    monkeypatch.undo()
    as_graph(monkeypatch)
    fourth.compile(compiler(fourth))
    assert fourth.compiled is False


def test_step_that_reads_a_value_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_graph(monkeypatch)
    envs = environments()
    monkeypatch.setattr(CartPole, "step", reads)
    envs.compile(compiler(envs))
    assert envs.compiled is False and "the environment step is not compiled" in caplog.text


def test_resumed_run_refuses_a_step_that_is_no_longer_traceable(monkeypatch: pytest.MonkeyPatch) -> None:
    as_graph(monkeypatch)
    envs = environments()
    envs.compile(compiler(envs))
    saved, other = envs.state_dict(), environments()
    other.load_state_dict(saved)
    monkeypatch.setattr(CartPole, "step", reads)
    with pytest.raises(UserError, match="the run began with compiled environments"):
        other.compile(compiler(other))


@heavy
@pytest.mark.usefixtures("warm")
def test_machine_code_of_step_equals_eager_step() -> None:
    eager, compiled = environments("batched/Pendulum-v1"), environments("batched/Pendulum-v1")
    compiled.compile(compiler(compiled))
    assert compiled.compiled and isinstance(compiled.env, Pendulum)
    for action in actions(eager):
        one, other = eager.step(action), compiled.step(action)
        torch.testing.assert_close(one.obs["state"], other.obs["state"], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.reward, other.reward, rtol=1e-4, atol=1e-4)
        assert torch.equal(one.is_first, other.is_first) and torch.equal(one.truncated, other.truncated)
    assert [episode.length for episode in compiled.pop_episodes()] == [12] * COPIES * 4
