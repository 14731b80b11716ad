from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import nn

from rlcore.config.schema import build
from rlcore.errors import UserError
from rlcore.optim.optimizer import OPTIMIZERS, Optimizer, OptimizerConfig
from rlcore.store.checkpoint import nested_state
from tests.learning.assembly import fabric


def made(max_grad_norm: float = 0.0, **keys: object) -> tuple[nn.Linear, Optimizer]:
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -1.0]]))
    config = build(OptimizerConfig, {"name": "sgd", "lr": 0.1, "betas": None, "eps": None, **keys}, "algo.optimizer.")
    return module, Optimizer(module, lambda loss: (loss, loss.detach()), config, max_grad_norm, fabric())


def stepped(optimizer: Optimizer, loss: torch.Tensor) -> torch.Tensor:
    """One whole step; the gradient's norm before clipping."""
    optimizer.accumulate(loss)
    return optimizer.apply()


def test_sgd_step_is_the_hand_calculation() -> None:
    # Loss 3·w0 + 4·w1: gradient (3, 4), norm 5; lr 0.1.
    module, optimizer = made()
    norm = stepped(optimizer, (module.weight * torch.tensor([[3.0, 4.0]])).sum())
    assert norm.item() == pytest.approx(5)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.7, -1.4]]))


def test_clipping_scales_the_gradient_to_the_norm_and_reports_it_unclipped() -> None:
    # Norm 5 clipped to 1: (0.6, 0.8).
    module, optimizer = made(max_grad_norm=1.0)
    norm = stepped(optimizer, (module.weight * torch.tensor([[3.0, 4.0]])).sum())
    assert norm.item() == pytest.approx(5)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.94, -1.08]]))


def test_accumulated_gradients_add_up_and_are_forgotten_after_the_step() -> None:
    module, optimizer = made()
    for _ in range(2):
        optimizer.accumulate(module.weight.sum())
    optimizer.apply()
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.8, -1.2]]))
    optimizer.accumulate(module.weight.sum())
    optimizer.drop()
    stepped(optimizer, 0 * module.weight.sum())
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.8, -1.2]]))


def test_learning_rate_applies_to_the_next_step() -> None:
    module, optimizer = made()
    optimizer.set_lr(1.0)
    stepped(optimizer, module.weight.sum())
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.0, -2.0]]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_survives_saving_and_loading(name: str) -> None:
    keys = {"betas": [0.9, 0.999], "eps": 1e-4} if name.startswith("adam") else {}
    weights = []
    for interrupted in (False, True):
        module, optimizer = made(name=name, **keys)
        for step in range(4):
            if interrupted and step == 2:
                state = nested_state.decode(*nested_state.encode(optimizer.state_dict()))
                weight = module.weight.detach().clone()
                module, optimizer = made(name=name, **keys)
                optimizer.load_state_dict(state)
                with torch.no_grad():
                    module.weight.copy_(weight)
            stepped(optimizer, (module.weight * torch.tensor([[3.0, step + 1.0]])).square().sum())
        weights.append(module.weight.detach().numpy())
    np.testing.assert_array_equal(*weights)


def test_settings_reach_the_torch_optimizer() -> None:
    config = build(
        OptimizerConfig, {"name": "adam", "lr": 0.3, "eps": 1e-3, "betas": [0.5, 0.6], "weight_decay": 0.1}, ""
    )
    group = config.make(nn.Linear(1, 1)).param_groups[0]
    assert (group["lr"], group["eps"], group["betas"], group["weight_decay"]) == (0.3, 1e-3, (0.5, 0.6), 0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_to_the_bit_the_one_of_torch_optim(name: str) -> None:
    config = OptimizerConfig(name=name, lr=0.1, betas=(0.8, 0.9))
    modules = [nn.Linear(3, 2), nn.Linear(3, 2)]
    modules[1].load_state_dict(modules[0].state_dict())
    ours, theirs = config.make(modules[0]), OPTIMIZERS[name](modules[1].parameters(), lr=0.1)
    theirs.load_state_dict(ours.state_dict())  # the settings
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        inputs = torch.randn(5, 3, generator=rng)
        for module, optimizer in zip(modules, (ours, theirs), strict=True):
            optimizer.zero_grad()
            module(inputs).square().sum().backward()
            optimizer.step()
    for parameter, expected in zip(*(module.parameters() for module in modules), strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(), expected.detach().numpy())
    assert nested_state.encode(ours.state_dict()) == nested_state.encode(theirs.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_loss_is_unscaled_before_it_is_clipped_and_an_overflow_is_no_step(name: str) -> None:
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    module = nn.Linear(2, 1, bias=False)
    config = OptimizerConfig(name=name, lr=0.1, eps=None, momentum=None)
    optimizer = Optimizer(
        module, lambda loss: (loss, loss.detach()), config, 1.0, Fabric(accelerator="cpu", devices=1, plugins=precision)
    )
    before = module.weight.detach().clone()
    assert stepped(optimizer, (module.weight * torch.tensor([[3.0, 4.0]])).sum()).item() == pytest.approx(5)
    after = module.weight.detach().clone()
    assert not torch.equal(before, after)
    if name == "sgd":
        torch.testing.assert_close(before - after, torch.tensor([[0.06, 0.08]]))
    stepped(optimizer, (module.weight * torch.tensor([[3.0, torch.inf]])).sum())
    assert torch.equal(module.weight, after)


def test_a_setting_the_optimizer_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"algo.optimizer.momentum=0.9: adam has no momentum; set it to null"):
        build(OptimizerConfig, {"name": "adam", "momentum": 0.9}, "algo.optimizer.")
    with pytest.raises(UserError, match=r"algo.optimizer.name=adm: must be one of .*did you mean 'adam'"):
        build(OptimizerConfig, {"name": "adm"}, "algo.optimizer.")
