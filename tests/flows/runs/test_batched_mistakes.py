"""Mistakes with batched environments: one sentence, exit code 2, and no run is created."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.cli.main import main
from flows.runs.create import new_run
from rlcore import plugins
from rlcore.errors import UserError

PLUGIN = """
import torch
from gymnasium import spaces

from rlcore.envs.batched.env import BatchedEnv


class Good(BatchedEnv):
    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, config):
        self.state = {"x": self.random.uniform(-1.0, 1.0)}
        return self.state["x"][:, None]

    def step(self, action):
        self.state = {"x": self.state["x"] * 0.9}
        return self.state["x"][:, None], -self.state["x"], self.state["x"] > 2


class Few(Good):
    max_num_envs = 3


class GlobalGenerator(Good):
    def reset(self, config):
        self.state = {"x": torch.rand(self.num_envs)}
        return self.state["x"][:, None]


class ResetShape(Good):
    def reset(self, config):
        return super().reset(config)[:, 0]


class StepShape(Good):
    def step(self, action):
        obs, reward, terminated = super().step(action)
        return obs, reward[:, None], terminated


class StepDtype(Good):
    def step(self, action):
        obs, reward, terminated = super().step(action)
        return obs, reward.double(), terminated


class StepDevice(Good):
    def step(self, action):
        obs, reward, terminated = super().step(action)
        return obs, reward.to("meta"), terminated


class UnlikeMembers(Good):
    def step(self, action):
        found = super().step(action)
        self.state = {"x": torch.cat([self.state["x"], self.ones()])}
        return found
"""
OWN, ENDLESS = "env.wrapper._target_=faulty.", ["env.id=batched/rl8-cartpole", "algo.rollout_steps=32"]
MISTAKES: dict[str, tuple[list[str], str]] = {
    "k = 0": ([*ENDLESS, "env.horizons_per_env_reset=0"], "env.horizons_per_env_reset=0: must be 1 or more"),
    "T·k above the limit": ([*ENDLESS, "env.horizons_per_env_reset=5"], "longer than the limit of 128 steps"),
    "too many copies": ([f"{OWN}Few", "env.num_envs=4"], "at most 3 copies are supported; set env.num_envs=3"),
    "unknown parameter": (["env.config.gravitation=1"], "has no field 'gravitation'"),
    "global generator": ([f"{OWN}GlobalGenerator"], "reset draws from the global random generator of torch"),
    "shape from reset": (
        [f"{OWN}ResetShape"],
        "reset gives the observation as float32 [1] on cpu, expected float32 [1, 1]",
    ),
    "shape from step": ([f"{OWN}StepShape"], "step gives the reward as float32 [1, 1] on cpu, expected float32 [1]"),
    "dtype from step": ([f"{OWN}StepDtype"], "step gives the reward as float64 [1] on cpu, expected float32 [1]"),
    "device from step": (
        [f"{OWN}StepDevice"],
        "step gives the reward as float32 [1] on meta, expected float32 [1] on cpu",
    ),
    "members of unlike shape": ([f"{OWN}UnlikeMembers"], "step sets self.state['x'] to float32 [2] on cpu, expected a"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv(plugins.VARIABLE, "faulty")
    monkeypatch.delitem(sys.modules, "faulty", raising=False)


@pytest.mark.parametrize("case", MISTAKES)
def test_new_run_refuses_mistake(case: str, tmp_path: Path) -> None:
    words, message = MISTAKES[case]
    with pytest.raises(UserError) as refused:
        new_run(["exp=ppo", "env=batched", "run_dir=runs/one", *words])
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faulty.py"]


def test_train_command_exits_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "exp=ppo", "env=batched", f"{OWN}StepShape", "run_dir=runs/one", "plugins=[faulty]"])
    assert (code, capsys.readouterr().err.count("step gives the reward as")) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faulty.py"]
