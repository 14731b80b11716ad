"""Parameters of batched environments: numbers, distributions and schedules in env.config."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.config.groups import EnvConfig, EvaluationConfig
from rlcore.config.run import RunConfig
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.batched.parameters import Parameters, for_evaluation, parse
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.card import environment_card
from rlcore.envs.make import adapt_to_evaluation, make
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.vector.choose import check_batched_options, make_vector_env
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec


class Reader(BatchedEnv):
    """The observation is the number of steps; the reward is the parameter of the episode; episodes have b + 2 steps."""

    observation_space = spaces.Box(0, 100, (1,))
    action_space = spaces.Discrete(2)

    class Config:
        paid: float = 0.5
        name: str = "x"
        count: int = 3

    def reset(self, config: Any) -> Tensor:
        self.state = {"n": self.ones(0.0), "seen": config.paid * self.ones()}
        return self.state["n"][:, None]

    def step(self, action: Tensor) -> Transition:
        n = self.state["n"] + 1
        self.state = {"n": n, "seen": self.state["seen"]}
        return n[:, None], self.config.paid * self.ones(), n == torch.arange(self.num_envs) + 2


SPEC = EnvSpec("reader", {"state": ArraySpec((1,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))


def reader(count: int, seed: int = 0, **config: Any) -> BatchedVectorEnv:
    parameters = parse(Reader.Config, config, "env.config", "reader")
    return BatchedVectorEnv(Reader(count), SPEC, EpisodeSeeds(seed, "env"), None, {"state": ()}, parameters)


def rewards(envs: BatchedVectorEnv, steps: int) -> Tensor:
    action = torch.zeros(envs.num_envs, dtype=torch.int64)
    return torch.stack([envs.step(action).reward for _ in range(steps)])


def test_number_replaces_default() -> None:
    for envs, expected in ((reader(2), 0.5), (reader(2, paid=0.7), 0.7)):
        envs.reset()
        assert rewards(envs, 2).flatten().tolist() == pytest.approx([expected] * 4)


def test_distribution_is_drawn_for_each_copy_and_episode() -> None:
    envs = reader(2, paid={"uniform": [0.3, 0.9]})
    envs.reset()
    found = rewards(envs, 7)
    # Rows (- is a reset):        copy 0: a a - b b - c          copy 1: A A A - B B B
    assert found[0, 0] == found[1, 0] and found[3, 0] == found[4, 0] and found[2, 0] == 0
    assert found[0, 1] == found[1, 1] == found[2, 1] and found[4, 1] == found[5, 1] and found[3, 1] == 0
    drawn = found[[0, 3, 6], [0, 0, 0]].tolist() + found[[0, 4], [1, 1]].tolist()
    assert len(set(drawn)) == 5 and all(0.3 <= value < 0.9 for value in drawn)
    assert torch.equal(envs.env.state["seen"], envs.env.config.paid)  # `reset` got the values that `step` uses


@pytest.mark.parametrize(
    ("value", "mean", "std"), [({"uniform": [1, 3]}, 2, 2 / 12**0.5), ({"normal": [-1, 0.5]}, -1, 0.5)]
)
def test_distribution_has_configured_moments(value: Any, mean: float, std: float) -> None:
    envs = reader(20_000, paid=value)
    envs.reset()
    drawn = envs.env.config.paid
    assert drawn.mean() == pytest.approx(mean, abs=0.02) and drawn.std() == pytest.approx(std, abs=0.02)


def test_drawn_values_do_not_depend_on_number_of_copies() -> None:
    few, many = reader(2, paid={"normal": [0, 1]}), reader(5, paid={"normal": [0, 1]})
    few.reset()
    many.reset()
    assert torch.equal(few.env.config.paid, many.env.config.paid[:2])


def test_schedule_counts_policy_steps_at_resets() -> None:
    envs = reader(2, paid=[[0, 1.0], [100, 2.0]])
    envs.start_rollout(0)
    envs.reset()
    assert rewards(envs, 2).tolist() == [[1, 1], [1, 1]]
    envs.start_rollout(50)
    # Copy 0 starts an episode in the next step; copy 1 plays its first one to its third step.
    assert rewards(envs, 4).tolist() == [[0, 1], [1.5, 0], [1.5, 1.5], [0, 1.5]]


def test_restored_state_continues_with_drawn_values() -> None:
    first, second = (reader(4, paid={"uniform": [0, 1]}) for _ in range(2))
    first.reset()
    rewards(first, 3)
    second.load_state_dict(first.state_dict())
    assert torch.equal(rewards(first, 20), rewards(second, 20))


def test_without_rules_no_random_number_is_used() -> None:
    plain, configured = (
        make_vector_env(EnvConfig(id="batched/CartPole-v1", config=config), num_envs=3, seed=1)
        for config in ({}, {"length": 0.5})
    )
    assert torch.equal(plain.reset().obs["state"], configured.reset().obs["state"])


def test_pole_length_changes_dynamics() -> None:
    short, drawn = (
        make_vector_env(EnvConfig(id="batched/CartPole-v1", config={"length": value}), num_envs=3, seed=1)
        for value in (0.3, {"uniform": [0.3, 0.9]})
    )
    for envs in (short, drawn):
        envs.reset()
        envs.env.state = {"values": torch.tensor([[0.0, 0.0, 0.1, 0.0]]).expand(3, 4)}
        envs.step(torch.ones(3, dtype=torch.int64))
    spin = [envs.env.state["values"][:, 3] for envs in (short, drawn)]
    assert len(spin[0].unique()) == 1 and len(spin[1].unique()) == 3
    # θ̈ = (g sin θ - cos θ · F/m) / (l (4/3 - m_p cos² θ / m)), with F = 10, m = 1.1, m_p = 0.1, θ = 0.1
    expected = (9.8 * np.sin(0.1) - np.cos(0.1) * 10 / 1.1) / (0.3 * (4 / 3 - 0.1 * np.cos(0.1) ** 2 / 1.1))
    assert spin[0][0].item() == pytest.approx(0.02 * expected, rel=1e-5)


def test_card_of_drawn_values_is_snapshot() -> None:
    config = EnvConfig(id="batched/CartPole-v1", config={"length": {"uniform": [0.3, 0.9]}, "force": [[0, 5], [9, 10]]})
    assert environment_card(config)["tier"] == "snapshot"


def test_evaluation_replaces_fields() -> None:
    training = {"length": {"uniform": [0.3, 0.9]}, "force": [[0, 5.0], [100, 10.0]], "tau": 0.01}
    assert for_evaluation(training, {"length": 0.7}) == {"length": 0.7, "force": 10.0, "tau": 0.01}
    config = EnvConfig(id="batched/CartPole-v1", config=training)
    with closing(make(adapt_to_evaluation(config, {"length": 0.7}))) as env:
        env.reset(seed=0)
        view: Any = env.unwrapped
        assert (view.env.config.length, view.env.config.force) == (0.7, 10.0)


def run(env: EnvConfig, **evaluation: Any) -> RunConfig:
    return RunConfig(
        algo=ppo.Config(total_steps=100, rollout_steps=64), env=env, evaluation=EvaluationConfig(**evaluation)
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"longth": 0.7}, "env.config.longth=0.7: batched/CartPole-v1 has no field 'longth'; its fields are gravity, "),
        ({"length": "long"}, "env.config.length=long: must be a number, got text"),
        ({"length": {"uniform": [0.9, 0.3]}}, "low must be less than high"),
        ({"length": {"uniform": [0.9]}}, "must be a number, {uniform: "),
        ({"length": {"gamma": [1, 2]}}, "must be a number, {uniform: "),
        ({"length": {}}, "must be a number, {uniform: "),
        ({"length": {"normal": [0, -1]}}, "the standard deviation must not be negative"),
        ({"length": [[10, 1], [5, 2]]}, "must increase"),
        ({"length": [1, 2]}, "list of .policy steps, value. pairs"),
        ({"length": []}, "at least one"),
        ({"length": float("nan")}, "must be a finite number"),
    ],
)
def test_invalid_value_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("{", r"\{")):
        check_batched_options(run(EnvConfig(id="batched/CartPole-v1", config=value)))


def test_schedule_in_evaluation_is_refused() -> None:
    config = run(EnvConfig(id="batched/CartPole-v1"), env_config={"length": [[0, 1], [10, 2]]})
    with pytest.raises(UserError, match=r"evaluation.env_config.length=.*: a schedule is allowed only in env.config"):
        check_batched_options(config)


def test_keys_of_batched_environments_are_refused_for_others() -> None:
    single = EnvConfig(id="CartPole-v1")
    for config, key in (
        (run(dataclasses.replace(single, config={"length": 1})), "env.config.length"),
        (run(dataclasses.replace(single, endless=True)), "env.endless=true"),
        (run(dataclasses.replace(single, horizons_per_env_reset=2)), "env.horizons_per_env_reset=2"),
        (run(single, env_config={"length": 1}), "evaluation.env_config.length"),
    ):
        with pytest.raises(UserError, match=f"{key}: has no effect because CartPole-v1"):
            check_batched_options(config)
            make(config.env)


def test_only_numbers_have_distributions() -> None:
    assert parse(Reader.Config, {"name": "y", "count": 4}, "env.config", "x").constants.name == "y"
    with pytest.raises(UserError, match="only fields that are numbers"):
        parse(Reader.Config, {"name": {"uniform": [0, 1]}}, "env.config", "x")


def test_plain_class_becomes_config() -> None:
    assert isinstance(Parameters(Reader.Config(), {}).constants, Reader.Config)
    assert [field.name for field in dataclasses.fields(Reader.Config)] == ["paid", "name", "count"]  # type: ignore[arg-type]
