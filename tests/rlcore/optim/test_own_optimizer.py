"""Optimizer classes of torch.optim and of plugins as update rules, compared with torch.optim itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flows.cli.main import main
from flows.config.compose import compose
from rlcore import conformance, plugins
from rlcore.compiled import machine_code
from rlcore.errors import UserError
from rlcore.optim import rules
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.train.trainer import Trainer
from tests.graphs import run_graphs
from tests.probes import own_model

OWN = "tests.probes.own_model"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes are a plugin that the user has named."""
    monkeypatch.setenv(plugins.VARIABLE, OWN)


CLASSES: list[tuple[str, Any, dict[str, Any]]] = [
    ("torch.optim:Adamax", torch.optim.Adamax, {"betas": [0.8, 0.99]}),
    ("torch.optim:Adagrad", torch.optim.Adagrad, {"initial_accumulator_value": 0.3}),
    ("torch.optim:Adadelta", torch.optim.Adadelta, {}),
    ("torch.optim:Rprop", torch.optim.Rprop, {}),
    (f"{OWN}:SignSGD", own_model.SignSGD, {"beta": 0.5}),
]


@pytest.mark.parametrize(("name", "own", "settings"), CLASSES, ids=[row[0] for row in CLASSES])
def test_own_rule_equals_torch_optimizer(name: str, own: Any, settings: dict[str, Any]) -> None:
    config, size = OptimizerConfig(name=name, settings=settings, eps=None, betas=None), rules.BLOCK // 4 + 10
    rules.check_class(config)
    vector = torch.randn(size)
    expected = torch.nn.Parameter(vector.clone())
    optimizer, state = own([expected], lr=0.01, **settings), rules.slots(config, vector)
    assert state
    for count in range(1, 5):
        expected.grad = torch.randn(size)
        gradient = expected.grad.clone()
        optimizer.param_groups[0]["lr"] = lr = 0.01 / count  # like a schedule
        optimizer.step()
        rules.update_in_place(config, vector, gradient, state, torch.tensor(float(count)).double(), torch.tensor(lr))
        torch.testing.assert_close(vector, expected.detach())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("torch.optim:NAdam", {}, "its state 'mu_product' is not a tensor of the size of the parameters"),
        ("torch.optim:LBFGS", {}, "a step failed"),
        (f"{OWN}:NormalizedSGD", {}, "does not update each element of the parameters independently"),
        (f"{OWN}:Net", {}, "must be a subclass of torch.optim.Optimizer"),
        ("torch.optim:Adamix", {}, "must be a subclass of torch.optim.Optimizer"),
        (f"{OWN}:SignSGD", {"gamma": 1}, r"settings=\{'gamma': 1\} \(TypeError: .*'gamma'\)"),
        ("json:Encoder", {}, "classes are imported only from modules that you name as plugins"),
    ],
)
def test_check_class_refuses_unsuitable_optimizer(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rules.check_class(OptimizerConfig(name=name, settings=settings))


def test_training_with_own_optimizer_resumes_exactly() -> None:
    small = ["env.num_envs=3", "env.max_episode_steps=12", "algo.rollout_steps=16", "algo.total_steps=1000"]
    name = [f"algo.optimizer.name={OWN}:SignSGD", "algo.optimizer.settings.beta=0.7"]
    config = compose(["exp=a2c", "optim@algo.optimizer=adam", *small, *name])[0]
    conformance.interrupted_equals_uninterrupted(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algo.optimizer.name=torch.optim:NAdam", "optimizer.name=torch.optim:NAdam: its state 'mu_product'"),
        ("algo.optimizer.settings.beta=3", "algo.optimizer.settings={'beta': 3}: has no effect without"),
    ],
)
def test_train_refuses_wrong_optimizer(
    override: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "exp=ppo", override]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_gradient_step_with_own_optimizer_is_not_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache therefore never contains machine code of a class that was edited."""
    monkeypatch.setattr(machine_code, "build", run_graphs)
    overrides = ["env.num_envs=2", "algo.rollout_steps=4", "algo.dense_units=4", f"algo.optimizer.name={OWN}:SignSGD"]
    run = compose(["exp=ppo", *overrides, "algo.optimizer.eps=null", "algo.optimizer.betas=null"])[0]
    training = Trainer(run, compiled=True)
    training.collect()
    training.update()
    assert training.learner.step.execution.began is False
    assert "the gradient step is not compiled and runs as eager code" in caplog.text
