"""Action masks in all that PPO, A2C and recurrent PPO do: the environment raises an error at a forbidden action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.config.values import plain
from rlcore.conformance.trainings import fresh
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.card import environment_card
from rlcore.envs.exact.recording import allowed_action
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.own import give
from rlcore.errors import EnvironmentFault, UserError
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.train.trainer import Trainer
from tests.contract.checks import conformance_cases
from tests.contract.test_registry import SETTINGS
from tests.rlcore.nn import test_action_masks as test_action_masks  # registers Probe/Crafts-v0
from tests.soaking import always, heavy, soak

pytestmark = heavy
ON_POLICY = ("ppo", "a2c", "ppo_recurrent")
ENVS = ("Probe/Masked-v0", "Probe/Crafts-v0", "Probe/Parts-v0")


class Parts(gymnasium.Env):
    """Composite action with a mask for each discrete part; a forbidden action raises."""

    action_space = spaces.Dict(
        {"arm": spaces.Box(-1, 1, (2,)), "digit": spaces.Discrete(3, start=5), "keys": spaces.MultiDiscrete([2, 4])}
    )
    observation_space = spaces.Dict(
        {"x": spaces.Box(0, 99, (1,)), "action_mask_a": spaces.MultiBinary(3), "action_mask_b": spaces.MultiBinary(6)}
    )

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.count = render_mode, 0

    def obs(self) -> dict[str, Any]:
        digit, lever, key = (np.arange(count) != self.count % count for count in (3, 2, 4))
        masks = {"action_mask_a": digit, "action_mask_b": np.concatenate([lever, key])}
        return {name: mask.astype(np.int8) for name, mask in masks.items()} | {"x": np.array([self.count], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        lever, key = action["keys"]
        if action["digit"] - 5 == self.count % 3 or lever == self.count % 2 or key == self.count % 4:
            raise ValueError(f"{action} is not allowed now")
        self.count += 1
        return self.obs(), 1.0, self.count >= 25, False, {}


gymnasium.register("Probe/Parts-v0", Parts)


def config(algo: str, env_id: str = "Probe/Crafts-v0", keys: str = "x", **changes: Any) -> RunConfig:
    values = SETTINGS[algo] | {"mlp_keys": {"encoder": [keys]}} | changes
    env = EnvConfig(id=env_id, num_envs=3, max_episode_steps=12)
    return RunConfig(algo=build(ALGORITHMS[algo].Config, values, "algo."), env=env, seed=0)


@pytest.mark.parametrize(("algo", "check"), conformance_cases("ppo_recurrent", "ppo", "a2c"))
def test_masked_training_passes_conformance(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(config(algo))


@always
@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("algo", ON_POLICY)
def test_collected_logprobs_equal_those_of_losses(algo: str, env_id: str) -> None:
    """The probability ratio before the first gradient step is 1, so acting and losses use the same masks."""
    training = fresh(config(algo, env_id))
    steps, last = training.collector.collect(24)
    obs = {key: rows.flatten(0, 1) for key, rows in steps.obs.items()}
    agent: Any = training.learner.agent
    with torch.no_grad():
        if algo == "ppo_recurrent":
            policy, _ = agent(_rows_alone(steps, obs))
        else:
            policy, _ = agent(obs)
        logprob = policy.logprob(steps.action.flatten(0, 1))
    torch.testing.assert_close(logprob, steps.extras["logprob"].flatten(), rtol=0, atol=1e-5)
    assert last.action.shape[1] == training.envs.spec.action.size


def _rows_alone(steps: Any, obs: dict[str, Tensor]) -> Any:
    """Return every row as a sequence of one row, with the carry that was stored before it."""
    from rlcore.algorithms.on_policy.ppo_recurrent.learner import Seen

    before = torch.cat([torch.zeros_like(steps.action[:1]), steps.action[:-1]]).flatten(0, 1)
    carry = {name: steps.extras[name].flatten(0, 1) for name in steps.extras if name not in ("logprob", "value")}
    return Seen(obs | {"past_action": before.unsqueeze(1)}, steps.is_first.flatten(), carry)


@pytest.mark.parametrize("algo", ON_POLICY)
def test_action_masks_false_takes_forbidden_actions(algo: str) -> None:
    training = fresh(config(algo, action_masks=False))
    assert training.learner.agent.keys == ("x",)
    with pytest.raises(EnvironmentFault, match="is not allowed now"):
        training.collector.collect(24)


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize(
    "check",
    [conformance.interrupted_equals_uninterrupted, conformance.a_loaded_policy_acts_alike],
    ids=lambda check: check.__name__,
)
def test_masked_parts_pass_conformance(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(config(algo, "Probe/Parts-v0"))


# The policy head, which applies the masks of parts, is the same in the three algorithms: one of them is traced.
@pytest.mark.parametrize("algo", ["ppo_recurrent", pytest.param("ppo", marks=soak), pytest.param("a2c", marks=soak)])
def test_masked_parts_are_traced_correctly(algo: str) -> None:
    conformance.compiled_equals_eager(config(algo, "Probe/Parts-v0"))


@pytest.mark.parametrize("algo", ON_POLICY)
def test_evaluation_obeys_masks_of_parts(algo: str) -> None:
    training = fresh(config(algo, "Probe/Parts-v0"))
    assert training.envs.spec.mask_keys == ("action_mask_a", "action_mask_b")
    training.collect()
    (metrics, *_) = training.take_gradient_steps()
    assert metrics["Info/allowed_choices"] == pytest.approx((2 + 1 + 3) / 9)
    for greedy in (True, False):
        assert training.evaluate(2, greedy=greedy)["mean"] == 12


def test_random_actions_obey_masks_of_parts() -> None:
    card = environment_card(EnvSettings("Probe/Parts-v0"))  # plays random actions, and recorded ones in other states
    assert card["tested"]["states_without_action"] == 0
    env = make(EnvSettings("Probe/Parts-v0"))
    agent, rng, drawn = RandomAgent(spec_of(env)), Noise(0, "baseline"), list[list[float]]()
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        for _ in range(25):
            rows = {key: torch.from_numpy(value)[None] for key, value in obs.items()}
            _, action, _ = agent.act((), rows, torch.zeros(1, dtype=torch.bool), rng)
            drawn.append(action[0].tolist())
            obs, *_ = env.step(agent.to_env(action)[0].numpy())  # raises if the action is forbidden
    assert [len({*column}) for column in zip(*drawn, strict=True)] == [100, 100, 3, 2, 4]


def test_allowed_action_replaces_forbidden_parts() -> None:
    env = make(EnvSettings("Probe/Parts-v0"))
    obs, _ = env.reset(seed=0)  # forbids the first choice of each sub-action
    given = np.array([0.25, -0.5, 5.0, 0.0, 2.0])
    assert allowed_action(given, spec_of(env), obs).tolist() == [0.25, -0.5, 6, 1, 2]
    fits = np.array([0.25, -0.5, 7.0, 1.0, 3.0])
    assert allowed_action(fits, spec_of(env), obs) is fits


@pytest.mark.parametrize("env_id", ENVS[:2])
@pytest.mark.parametrize("algo", ON_POLICY)
def test_loaded_policy_needs_and_obeys_masks(algo: str, env_id: str) -> None:
    training = fresh(config(algo, env_id))
    spec = training.envs.spec
    description = {"algo": plain(training.config.algo), "distribution": "auto", "spec": spec.to_json()}
    policy = LoadedPolicy(description, training.learner.agent.state_dict())
    masks = [column.name for column in policy.signature.inputs if column.kind == "mask"]
    assert masks == [*spec.mask_keys]
    key = "mask_kind" if "mask_kind" in masks else "action_mask"  # mask of the first sub-action
    part = spec.obs[key]
    for choice in range(part.size):
        obs = policy.example() | {key: np.eye(part.size, dtype=part.dtype)[[choice]]}
        for greedy in (True, False):
            action = policy.step(obs, None, greedy=greedy)[0]
            assert np.ravel(action)[0] == choice + spec.action.start[0]
    with pytest.raises(UserError, match=f"key '{key}' is missing"):
        policy.step({name: rows for name, rows in policy.example().items() if name != key})


class Doors(BatchedEnv):
    """Nested observation with a mask that allows one of four actions; the reward is 1 for an allowed action."""

    observation_space = spaces.Dict(
        {
            "inner": spaces.Dict({"x": spaces.Box(0, 99, (1,)), "action_mask": spaces.MultiBinary(4)}),
        }
    )
    action_space = spaces.Discrete(4)
    max_episode_steps = 20

    def __init__(self, num_envs: int, device: Any = "cpu", closed_at: int = -1) -> None:
        super().__init__(num_envs, device)
        self.closed_at = closed_at

    def reset(self, config: Any) -> Any:
        self.state = {"count": torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)}
        return self._obs()

    def step(self, action: Tensor) -> Transition:
        allowed = (self._mask().long() * torch.nn.functional.one_hot(action.long(), 4)).sum(1)
        self.state = {"count": self.state["count"] + 1}
        return self._obs(), allowed.float(), torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def _mask(self) -> Tensor:
        count = self.state["count"]
        mask = torch.nn.functional.one_hot(count % 4, 4)
        return (mask * (count != self.closed_at).unsqueeze(1)).to(torch.int8)

    def _obs(self) -> Any:
        return {"inner": {"x": self.state["count"].float().unsqueeze(1), "action_mask": self._mask()}}


def doors(algo: str, **wrapper: Any) -> RunConfig:
    env = EnvConfig(id="doors", num_envs=3, wrapper={"_target_": give(Doors), **wrapper})
    values = SETTINGS[algo] | {"mlp_keys": {"encoder": ["inner.x"]}}
    return RunConfig(algo=build(ALGORITHMS[algo].Config, values, "algo."), env=env, seed=0)


@pytest.mark.parametrize("algo", ON_POLICY)
def test_batched_environment_gives_mask_in_nested_observation(algo: str) -> None:
    training = Trainer(doors(algo))
    assert training.envs.spec.mask_keys == ("inner.action_mask",)
    training.collect()
    (metrics,) = training.take_gradient_steps()
    assert metrics["Info/allowed_choices"] == 0.25
    for greedy in (True, False):
        assert training.evaluate(3, greedy=greedy)["mean"] == 20
    conformance.interrupted_equals_uninterrupted(doors(algo))


@pytest.mark.parametrize("algo", ON_POLICY)
def test_loaded_policy_refuses_request_without_allowed_action(algo: str) -> None:
    """`step` accepts it, because the last observation of an episode can have a mask of zeros."""
    training = fresh(doors(algo))
    description = {"algo": plain(training.config.algo), "distribution": "auto", "spec": training.envs.spec.to_json()}
    policy = LoadedPolicy(description, training.learner.agent.state_dict())
    obs = {"inner": {"x": [[1.0], [2.0]], "action_mask": [[0, 0, 1, 0], [0, 0, 0, 0]]}}
    assert policy.step(obs)[0][0] == 2
    request = obs | {"is_first": [True, True]} | policy.initial_carry(2)
    with pytest.raises(UserError, match="obs 'inner.action_mask': row 1 of the action mask allows no action; set at"):
        policy.exchange(request)
    obs["inner"]["action_mask"][1] = [0, 1, 0, 0]
    assert policy.exchange(request)["action"].tolist() == [2, 1]


@pytest.mark.parametrize("algo", ON_POLICY)
def test_state_without_allowed_action_is_an_error(algo: str) -> None:
    """Found by make-env; or, if it was not tested there, by the evaluation and with the metrics of training."""
    closed = doors(algo, closed_at=3)
    with pytest.raises(UserError, match="tested, the action masks allow no action although the episode continues"):
        Trainer(closed)
    training = Trainer(closed, environment_card(doors(algo).env))
    training.collect()
    with pytest.raises(EnvironmentFault, match="^before policy step .*: the action masks allow no action") as refused:
        training.update()
    assert "\n" not in str(refused.value)
    with pytest.raises(EnvironmentFault, match="^.*: the action masks allow no action"):
        training.evaluate(2)


def test_last_state_of_episode_may_allow_no_action() -> None:
    training = Trainer(doors("ppo", closed_at=20))
    assert training.card["tested"]["states_without_action"] == 0
    training.collect()
    training.update()
    training.evaluate(2)


def test_card_counts_states_without_action_of_single_environment() -> None:
    settings = EnvSettings("Probe/Masked-v0")
    assert environment_card(settings)["tested"]["states_without_action"] == 0
