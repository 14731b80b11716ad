"""Environments that break training without raising: rewards too large for float32, global switches of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flows.config.compose import compose
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.system.torch_switches import keeping_switches, read_switches
from rlcore.train.trainer import Trainer
from tests.rlcore.envs import probe_envs
from tests.runs import CARD

SMALL = ["exp=ppo", "env.id=Probe/Counter-v0", "env.num_envs=2", "algo.rollout_steps=16", "algo.total_steps=128"]


def training(*overrides: str) -> Trainer:
    return Trainer(compose([*SMALL, *overrides])[0], CARD | {"tier": "replay"})


def misbehave(monkeypatch: pytest.MonkeyPatch, method: str, call: Any, reward: float | None = None) -> None:
    original = getattr(probe_envs.Counter, method)

    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        call()
        found = original(self, *given, **named)
        return found if reward is None else (found[0], reward, *found[2:])

    monkeypatch.setattr(probe_envs.Counter, method, wrapped)


def test_reward_of_1e30_ends_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, "step", lambda: None, reward=1e30)
    with pytest.raises(RunError, match=r"not finite after \d+ updates and 32 policy steps: .*value_loss"):
        next(iter(training()))
    stepwise = training()
    stepwise.collect()
    with pytest.raises(RunError, match="not finite after"):
        stepwise.update()


def test_save_refuses_weights_that_are_not_finite(tmp_path: Any) -> None:
    broken = training()
    broken.collect()
    broken.update()
    with torch.no_grad():
        next(broken.learner.agent.parameters()).fill_(torch.nan)
    with pytest.raises(RunError, match="not finite after 32 policy steps: agent"):
        broken.save(tmp_path)
    assert not any(tmp_path.iterdir())


CALLS = {
    "set_default_dtype(torch.float64)": lambda: torch.set_default_dtype(torch.float64),
    "set_default_device(meta)": lambda: torch.set_default_device("meta"),
    "set_num_threads(5)": lambda: torch.set_num_threads(5),
    "set_float32_matmul_precision(medium)": lambda: torch.set_float32_matmul_precision("medium"),
    "set_flush_denormal(True)": lambda: torch.set_flush_denormal(True),
}


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
@pytest.mark.parametrize("call", CALLS)
def test_environment_that_sets_torch_switch_is_named(call: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, method, CALLS[call])
    with keeping_switches():
        torch.set_num_threads(1)
        with pytest.raises(EnvironmentFault) as fault:
            training("num_threads=1").collect()
        assert f"the code of an environment calls torch.{call}, which changes" in str(fault.value)
        assert "env.sync_env=false" in str(fault.value)
        assert read_switches()[:3] == (torch.float32, torch.device("cpu"), 1), "set back"


def test_evaluate_restores_torch_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    one = training()
    before = read_switches()
    misbehave(monkeypatch, "step", lambda: torch.set_default_dtype(torch.float64))
    one.evaluate(2)
    assert read_switches() == before


def test_environment_may_change_numpy_error_handling(monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, "step", lambda: np.seterr(all="raise"))
    with np.errstate():
        assert len(list(training())) == 4


def test_trainer_refuses_other_default_dtype() -> None:
    with keeping_switches():
        torch.set_default_dtype(torch.float64)
        with pytest.raises(UserError, match="the default dtype of torch is torch.float64"):
            training()
