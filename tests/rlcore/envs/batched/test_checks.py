"""Checks of batched environments: each fault is named by method, tensor, expected and returned value."""

from __future__ import annotations

import functools
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.config.build import build as build_values
from rlcore.conformance import check_batched_env
from rlcore.envs.batched.env import BatchedEnv
from rlcore.errors import EnvironmentFault, ShepherdError, UserError
from rlcore.train.build import build

WALK = "^env.wrapper._target_=.*: "


class Walk(BatchedEnv):
    """A random walk with a goal; subclasses break one rule each."""

    observation_space: Any = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (1,), np.float32),
            "clock": spaces.Dict({"left": spaces.Box(-np.inf, np.inf, (), np.float32)}),
        }
    )
    action_space = spaces.Discrete(2)
    max_episode_steps = 40

    class Config:
        speed: float = 0.1

    def reset(self, config: Any) -> Any:
        self.state = {"place": self.random.uniform(-1.0, 1.0), "left": self.ones(40.0)}
        return self.show()

    def step(self, action: Tensor) -> Any:
        self.state = {"place": self.state["place"] + self.moved(action), "left": self.state["left"] - 1}
        return self.show(), -self.state["place"].abs(), self.state["place"].abs() > 1.3

    def moved(self, action: Tensor) -> Tensor:
        return self.config.speed * ((2 * action - 1) + self.random.normal())

    def show(self) -> Any:
        return {"place": self.state["place"][:, None], "clock": {"left": self.state["left"]}}


class ObsTuple(Walk):
    observation_space = spaces.Dict({"clock": spaces.Tuple([spaces.Box(-np.inf, np.inf, (), np.float32)])})

    def show(self) -> Any:
        return {"clock": (self.state["left"],)}


class ObsShape(Walk):
    def show(self) -> Any:
        return super().show() | {"place": self.state["place"]}


class ObsDtype(Walk):
    def show(self) -> Any:
        return super().show() | {"clock": {"left": self.state["left"].double()}}


class ObsKey(Walk):
    def show(self) -> Any:
        return super().show() | {"clock": {"right": self.state["left"]}}


class ObsFlat(Walk):
    def show(self) -> Any:
        return self.state["place"][:, None]


class ObsArray(Walk):
    def show(self) -> Any:
        return super().show() | {"place": np.zeros((self.num_envs, 1), np.float32)}


class ObsInfinite(Walk):
    def show(self) -> Any:
        return super().show() | {"place": (1 / self.state["place"].sign().clamp(min=0))[:, None]}


class ObsDevice(Walk):
    def show(self) -> Any:
        return super().show() | {"clock": {"left": torch.zeros(self.num_envs)}}


class RewardShape(Walk):
    def step(self, action: Tensor) -> Any:
        obs, reward, ended = super().step(action)
        return obs, reward[:, None], ended


class RewardDtype(Walk):
    def step(self, action: Tensor) -> Any:
        obs, reward, ended = super().step(action)
        return obs, reward.double(), ended


class EndsDtype(Walk):
    def step(self, action: Tensor) -> Any:
        obs, reward, ended = super().step(action)
        return obs, reward, ended.float()


class NoEnds(Walk):
    def step(self, action: Tensor) -> Any:
        return super().step(action)[:2]


class StateShape(Walk):
    def step(self, action: Tensor) -> Any:
        found = super().step(action)
        self.state = self.state | {"left": self.state["left"][:, None].expand(-1, 2)}
        return found


class StateKeys(Walk):
    def step(self, action: Tensor) -> Any:
        found = super().step(action)
        self.state = self.state | {"new": self.ones()}
        return found


class StateRows(Walk):
    def reset(self, config: Any) -> Any:
        found = super().reset(config)
        self.state["count"] = torch.zeros((), device=self.device)
        return found


class NoState(Walk):
    def reset(self, config: Any) -> Any:
        return {"place": torch.zeros((self.num_envs, 1), device=self.device), "clock": {"left": self.ones()}}


class InPlace(Walk):
    def step(self, action: Tensor) -> Any:
        self.state["left"] -= 1
        return self.show(), -self.state["place"].abs(), self.state["place"].abs() > 1.3


class Reads(Walk):
    def step(self, action: Tensor) -> Any:
        return super().step(action if float(action.sum()) > 0 else 1 - action)


class Raises(Walk):
    def step(self, action: Tensor) -> Any:
        raise KeyError("speed")


class TorchDraws(Walk):
    def moved(self, action: Tensor) -> Tensor:
        return torch.randn(self.num_envs, device=self.device)


class NumpyDraws(Walk):
    def moved(self, action: Tensor) -> Tensor:
        return super().moved(action) + float(np.random.normal())


class PythonDraws(Walk):
    def reset(self, config: Any) -> Any:
        self.luck = random.random()
        return super().reset(config)


class PythonChooses(Walk):
    def moved(self, action: Tensor) -> Tensor:
        return random.choice([1.0, 1.0]) * super().moved(action)


class Neighbours(Walk):
    def moved(self, action: Tensor) -> Tensor:
        return super().moved(action) + 0.001 * self.state["place"].mean()


class Order(Walk):
    def moved(self, action: Tensor) -> Tensor:
        return super().moved(action) + 0.001 * torch.arange(self.num_envs, device=self.device)


class Hidden(Walk):
    """Has state outside of `state`."""

    steps = 0

    def moved(self, action: Tensor) -> Tensor:
        self.steps += 1
        return super().moved(action) + 0.001 * self.steps


class Unseeded(Walk):
    """Differs from one instance to the next."""

    made = 0

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        super().__init__(num_envs, device)
        Unseeded.made += 1
        self.number = Unseeded.made

    def moved(self, action: Tensor) -> Tensor:
        return super().moved(action) + 0.001 * self.number


FAULTS: dict[type[BatchedEnv], str] = {
    ObsShape: r"reset gives observation 'place' as float32 \[6\] on cpu, expected float32 \[6, 1\] on cpu",
    ObsDtype: r"reset gives observation 'clock.left' as float64 \[6\] on cpu, expected float32 \[6\] on cpu",
    ObsKey: r"reset returned no observation 'clock.left', expected the keys left; got right",
    ObsFlat: r"reset returned the observation as a Tensor, expected a dict with clock, place",
    ObsTuple: r"observation_space\['clock'\] is a Tuple, which .* use a Dict",
    ObsArray: r"reset gives observation 'place' as a ndarray, expected float32 \[6, 1\] on cpu",
    ObsInfinite: r"reset gives observation 'place' with values that are not finite",
    ObsDevice: r"reset gives observation 'clock.left' as float32 \[6\] on cpu, expected float32 \[6\] on meta",
    RewardShape: r"step gives the reward as float32 \[6, 1\] on cpu, expected float32 \[6\] on cpu",
    RewardDtype: r"step gives the reward as float64 \[6\] on cpu, expected float32 \[6\] on cpu",
    EndsDtype: r"step gives terminated as float32 \[6\] on cpu, expected bool \[6\] on cpu",
    NoEnds: r"step returned 2 values, expected a tuple of observation, reward and terminated",
    StateShape: r"step gives self.state\['left'\] as float32 \[6, 2\] on cpu, expected float32 \[6\] on cpu",
    StateKeys: r"step sets self.state with the keys place, left, new, but reset with place, left",
    StateRows: r"reset sets self.state\['count'\] to float32 \[\] on cpu, expected a tensor \[6, ...\]",
    NoState: r"reset must set self.state to a dict of tensors; it is a NoneType",
    InPlace: r"step changes (self.state\['left'\]|observation 'clock.left') in place",
    Reads: r"reset or step reads the value of a tensor",
    Raises: r"step raised KeyError: 'speed'",
    TorchDraws: r"step draws from the global random generator of torch, .* draw from self.random",
    NumpyDraws: r"step draws from the global random generator of numpy",
    PythonDraws: r"reset draws from the global random generator of random",
    PythonChooses: r"step draws from the global random generator of random",
    Neighbours: r"a copy depends on the number of copies",
    Order: r"a copy depends on the order of the copies",
    Hidden: r"a saved state does not continue exactly",
    Unseeded: r"the same seed and actions give other results",
}


@pytest.mark.parametrize("env", FAULTS, ids=lambda env: env.__name__)
def test_fault_is_named(env: type[BatchedEnv]) -> None:
    with pytest.raises(EnvironmentFault, match=WALK + FAULTS[env]):
        check_batched_env(env)


class OtherThreadDraws(Walk):
    """In every step, another thread draws from the global generator of `random`, as threads of libraries may."""

    def moved(self, action: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as other:
            other.submit(random.random).result()
        return super().moved(action)


def test_draw_in_another_thread_is_no_fault() -> None:
    assert check_batched_env(OtherThreadDraws)["tier"] == "snapshot"


def test_checks_keep_active_profiler() -> None:
    def profiler(*event: Any) -> None: ...

    sys.setprofile(profiler)
    try:
        with pytest.raises(EnvironmentFault, match="generator of random"):
            check_batched_env(PythonDraws)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_correct_environment_passes() -> None:
    assert check_batched_env(Walk, config={"speed": {"uniform": [0.05, 0.2]}})["tier"] == "snapshot"
    assert check_batched_env(functools.partial(Walk))["max_episode_steps"] == 40


def test_limit_of_rl8_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^Old\.max_horizon: this attribute of rl8 .*; rename it to max_episode_steps, "
    ):
        type("Old", (Walk,), {"max_horizon": 128})


class Few(Walk):
    max_num_envs = 1


def test_class_with_small_limit_is_checked_and_evaluated_with_few_copies() -> None:
    assert check_batched_env(Few)["tested"]["steps"] == 600
    algo = build_values(ppo.Config, {"total_steps": 100, "dense_units": 4, "mlp_keys": {"encoder": ["place"]}}, "algo.")
    assert build(algo, Few, num_envs=1).evaluate(episodes=3)["episodes"] == 3
    with pytest.raises(UserError, match=r"Few, env.num_envs=2: at most 1 copies are supported; set env.num_envs=1"):
        build(algo, Few, num_envs=2)


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(ShepherdError, match="has no field 'sped'; its fields are speed; did you mean 'speed'"):
        check_batched_env(Walk, config={"sped": 1})
