"""Trainer of an environment class, without a config file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.envs.batched.classic_control import CartPole
from rlcore.envs.batched.env import BatchedEnv
from rlcore.errors import RunError, UserError
from rlcore.evaluation.policy import load_policy
from rlcore.store.checkpoint import nested_state
from rlcore.train.build import build
from rlcore.train.stopping import StopsIncreasing, UpperBound
from rlcore.train.trainer import Trainer


class Walk(BatchedEnv):
    """Position on a line; the reward is the negative distance from the origin."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    max_episode_steps = 10

    def __init__(self, num_envs: int, device: Any = "cpu", step_size: float = 0.1) -> None:
        super().__init__(num_envs, device)
        self.step_size = step_size

    def reset(self, config: Any) -> Tensor:
        self.state = {"position": self.random.uniform(-1.0, 1.0)}
        return self.state["position"][:, None]

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = self.state["position"] + self.step_size * (2 * action - 1)
        self.state = {"position": position}
        return position[:, None], -position.abs(), position.abs() > 2.0


def trainer(env: Any, total_steps: int | None = 400, **how: Any) -> Trainer:
    return build(a2c.Config(total_steps=total_steps, rollout_steps=5, dense_units=8), env, **{"num_envs": 8, **how})


def bits(one: Trainer) -> Any:
    return nested_state.encode(one.state_dict())


def test_class_function_and_partial_train_to_same_bits() -> None:
    made = [trainer(env) for env in (Walk, lambda num_envs, device: Walk(num_envs, device), functools.partial(Walk))]
    for one in made:
        one.collect()
        one.update()
    assert bits(made[0]) == bits(made[1]) == bits(made[2]) and made[0].envs.num_envs == 8


def test_partial_reaches_evaluation() -> None:
    """With steps of length 0, the return of an episode depends on its start only: 10 times the start."""
    still, moving = trainer(functools.partial(Walk, step_size=0.0)), trainer(functools.partial(Walk, step_size=0.1))
    assert min(still.evaluate(20)["returns"]) >= -10.0 > min(moving.evaluate(20)["returns"])


def test_id_and_gymnasium_class_are_accepted() -> None:
    by_id = trainer("CartPole-v1")
    by_class = trainer(gymnasium.make("CartPole-v1").unwrapped.__class__)
    assert by_id.envs.spec.obs == by_class.envs.spec.obs


def test_saved_policy_acts_without_environment(tmp_path: Path) -> None:
    one = trainer(Walk)
    assert one.collect()["Game/steps"] == 40 and np.isfinite(one.update()["Loss/policy_loss"])
    policy = load_policy(one.save(tmp_path / "policy"))
    assert policy.predict(np.zeros((3, 1), np.float32)).shape == (3,)


def test_config_groups_are_checked() -> None:
    with pytest.raises(UserError, match=r"evaluation.episode"):
        trainer(Walk, config={"evaluation": {"episode": 3}})
    with pytest.raises(UserError, match=r"build\(env=3\)"):
        trainer(3)


def test_env_config_starts_new_episodes_with_parameters_that_stay(tmp_path: Path) -> None:
    one = trainer(CartPole)
    one.collect()
    one.update()
    one.collect(env_config={"length": {"uniform": [0.6, 0.9]}, "gravity": 5.0})
    assert one.collector._staging is not None and one.collector._staging.show(0)[1].all()  # all of them are new
    one.update()
    again = trainer(CartPole).load(one.save(tmp_path))
    for each in (one, again):
        for _ in range(8):  # far enough for resets
            each.collect()
            each.update()
        drawn = each.envs.env.config
        assert drawn.gravity == 5.0 and ((drawn.length >= 0.6) & (drawn.length < 0.9)).all()
    assert bits(one) == bits(again)


def test_env_config_drops_running_episodes() -> None:
    """All episodes have 10 steps, and rollouts 5. The reset cuts the first ones in half."""
    one, found = trainer(Walk), []
    for env_config in (None, {}, None):
        found.append(one.collect(env_config=env_config))
        one.update()
    assert [(each["Game/resets"], each["Game/episodes"]) for each in found] == [(8, 0), (8, 0), (0, 8)]
    assert found[2]["Game/ep_len_avg"] == 10 and "Rewards/rew_avg" not in found[1]


def test_collect_refuses_env_config_that_cannot_be_used() -> None:
    with pytest.raises(UserError, match=r"env_config.size=1: CartPole has no field 'size'; its fields are gravity"):
        trainer(CartPole).collect(env_config={"size": 1})
    with pytest.raises(UserError, match=r"env_config=.*: CartPole-v1 is not a batched environment"):
        trainer("CartPole-v1").collect(env_config={"length": 1.0})
    endless = {"env": {"endless": True, "horizons_per_env_reset": 2}}
    one = trainer(CartPole, config=endless)
    one.collect(env_config={"length": 0.7})  # the first rollout starts with a reset
    one.update()
    with pytest.raises(UserError, match=r"endless environments are reset only in 5 steps"):
        one.collect(env_config={"length": 0.6})
    one.collect()
    one.update()
    one.collect(env_config={"length": 0.6})
    assert one.envs.env.config.length == 0.6


def test_load_restores_parameters_of_checkpoint(tmp_path: Path) -> None:
    one = trainer(CartPole, config={"env": {"config": {"length": {"uniform": [0.4, 0.6]}}}})
    one.collect()
    one.update()
    path, saved = one.save(tmp_path), bits(one)
    one.collect(env_config={"length": 0.9})
    one.update()
    assert bits(one.load(path)) == saved
    one.collect(env_config={})  # new episodes with the parameters of the config
    length = one.envs.env.config.length
    assert ((length >= 0.4) & (length < 0.6)).all()


def test_env_config_refuses_schedules() -> None:
    schedule = {"length": [[0, 0.5], [100, 0.9]]}
    with pytest.raises(UserError, match=r"env_config.length=.*: a schedule is allowed only in env.config"):
        trainer(CartPole).collect(env_config=schedule)
    with pytest.raises(UserError, match=r"evaluation.env_config.length=.*: a schedule is allowed only in env.config"):
        trainer(CartPole).evaluate(2, env_config=schedule)
    with pytest.raises(UserError, match=r"has no effect because CartPole-v1 is not a batched environment"):
        trainer("CartPole-v1").evaluate(2, env_config={"length": 1.0})


def test_greedy_collect_changes_nothing_and_needs_no_update() -> None:
    first, second = trainer(CartPole), trainer(CartPole)
    for one in (first, second):
        one.collect()
        one.update()
    found = first.collect(greedy=True, env_config={"length": 1.5})
    assert found["Game/episodes"] == 8 and found["Rewards/rew_avg"] == found["Game/ep_len_avg"] > 1
    assert found != first.collect(greedy=True)
    for one in (first, trainer(CartPole)):  # after a greedy collect, and before any
        with pytest.raises(
            RunError, match=r"call collect\(\) before update\(\): .*collect\(greedy=True\) only returns"
        ):
            one.update()
    assert bits(first) == bits(second)


def test_run_stops_at_condition_and_evaluates() -> None:
    one = trainer(Walk, total_steps=None, config={"evaluation": {"episodes": 3}})
    seen: list[int] = []
    found = one.run(
        [UpperBound("policy_steps", 200)], evaluate_every=2, on_iteration=lambda i: seen.append(i.policy_steps)
    )
    assert found.reason == "upper_bound: policy_steps = 200, which is at least 200"
    assert seen == [*found.metrics] == [40, 80, 120, 160, 200] and [*found.evaluations] == [80, 160]
    assert found.evaluations[80]["episodes"] == 3
    with pytest.raises(UserError, match=r"run\(\): training would never end"):
        one.run([])
    with pytest.raises(UserError, match=r"evaluate_every=0"):
        one.run([UpperBound("policy_steps", 200)], evaluate_every=0)


def test_run_uses_budget_and_conditions_of_config() -> None:
    assert trainer(Walk).run().reason == "finished"
    stop = [{"upper_bound": {"metric": "policy_steps", "value": 100}}]
    found = trainer(Walk, config={"stop": stop}).run()
    assert found.reason.startswith("upper_bound") and max(found.metrics) == 120
    with pytest.raises(UserError, match=r"stop=Loss/polic_loss: this training does not report this metric"):
        trainer(Walk, total_steps=1000).run([StopsIncreasing("Loss/polic_loss")])


def test_run_refuses_training_without_end() -> None:
    with pytest.raises(UserError, match=r"run\(\): training would never end"):
        trainer(Walk, total_steps=None).run(on_iteration=lambda _: pytest.fail("an iteration was trained"))


def test_collect_counts_resets_before_rollout() -> None:
    one = trainer(CartPole, config={"env": {"endless": True, "horizons_per_env_reset": 1}})
    for _ in range(3):
        assert one.collect()["Game/resets"] == 8
        one.update()
    again = trainer(Walk)
    for env_config, resets in ((None, 8), (None, 0)):
        assert again.collect(env_config=env_config)["Game/resets"] == resets
        again.update()


def test_run_reads_evaluations_in_conditions() -> None:
    """The mean return of evaluations at steps of length 0 is constant, so that it never increases."""
    still = trainer(functools.partial(Walk, step_size=0.0), total_steps=None)
    found = still.run([StopsIncreasing("Evaluation/greedy_mean", patience=2)], evaluate_every=1)
    assert found.reason.startswith("stops_increasing") and len(found.evaluations) == 3


class Net(nn.Module):
    """Network of a program for `Walk`."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.value = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = self.features(obs["state"]).tanh()
        return features, self.value(features).squeeze(-1)


def test_network_instance_is_trained_evaluated_and_resumed(tmp_path: Path) -> None:
    net = Net()

    def build_again() -> Any:
        return build(a2c.Config(total_steps=400, rollout_steps=5, model=net), Walk, num_envs=8)

    one = build_again()
    weight = one.learner.agent.model.net.features.weight
    assert torch.equal(weight, net.features.weight) and weight is not net.features.weight
    one.collect()
    one.update()
    assert len(one.evaluate(2)["returns"]) == 2
    assert one.collect(greedy=True)["Game/episodes"] == 8
    assert bits(build_again().load(one.save(tmp_path))) == bits(one)
