"""Groups of parameters and all kinds of clipping compared with torch and NumPy, eager and as compiled graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.config.build import build
from rlcore.errors import UserError
from rlcore.optim import clipping
from rlcore.optim.clipping import CLIPPING, ClippingRule
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import CLIP_NORMS, OptimizerConfig
from rlcore.optim.step import Step
from tests.graphs import run_graphs
from tests.rlcore.optim.test_optimizer import PLAIN, context


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the graph that would be compiled."""
    monkeypatch.setattr(machine_code, "build", run_graphs)


def network() -> Any:
    rng = torch.Generator().manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), nn.Linear(4, 2)
    module = nn.Sequential()
    module.add_module("encoder", encoder)
    module.add_module("head", head)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng)
    return module


def optimizer_of(module: nn.Module, config: OptimizerConfig, compiled: bool, **more: Any) -> Optimizer:
    def loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return module(x).square().sum(), torch.tensor(float(len(x))), {}

    return Optimizer(module, loss, config, context(compiled=compiled), **more)


def step_of(module: nn.Module, clip_norm: str, compiled: bool, **more: Any) -> Step:
    settings = {"name": "sgd", "lr": 0.1, "betas": None, "eps": None, "clip_norm": clip_norm}
    optimizer = optimizer_of(module, build(OptimizerConfig, settings), compiled, **more)
    return Step(lambda x: optimizer.minimize(x).metrics, [optimizer], [], context(compiled=compiled))


GROUPS = {"head": {"lr": 0.01}, "*.bias": {"weight_decay": 0.0}, "encoder.1": {"lr": 0.2, "weight_decay": 0.3}}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_groups_have_own_learning_rate_and_weight_decay(name: str, compiled: bool) -> None:
    """The first pattern wins: the head bias keeps the common decay, the norm bias the common learning rate."""
    settings: dict[str, Any] = {"name": name, "lr": 0.1, "weight_decay": 0.1, "groups": GROUPS}
    settings |= {} if name == "adamw" else {"betas": None}
    config = build(OptimizerConfig, settings)
    module = network()
    theirs = copy.deepcopy(module)
    optimizer = optimizer_of(module, config, compiled)
    oracle = {"adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}[name](
        [
            {"params": [*theirs.head.parameters()], "lr": 0.01},
            {"params": [theirs.encoder[0].bias, theirs.encoder[1].bias], "weight_decay": 0.0},
            {"params": [theirs.encoder[1].weight], "lr": 0.2, "weight_decay": 0.3},
            {"params": [theirs.encoder[0].weight]},
        ],
        lr=0.1,
        weight_decay=0.1,
        eps=1e-4,
    )
    rng = torch.Generator().manual_seed(1)
    for step in range(4):
        if step == 2:  # a schedule halves all learning rates
            optimizer.set_lr(0.05)
            for group in oracle.param_groups:
                group["lr"] /= 2
        x = torch.randn(5, 3, generator=rng)
        optimizer.minimize(x)
        oracle.zero_grad()
        (theirs(x).square().sum() / 5).backward()
        oracle.step()
        for (key, mine), other in zip(module.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=1e-4, atol=1e-5, msg=key)


def test_groups_refuse_unmatched_pattern_and_wrong_settings() -> None:
    with pytest.raises(
        UserError, match=r"groups: 'heads' matches no parameter .* the parameters are encoder.0.weight, "
    ):
        optimizer_of(network(), OptimizerConfig(groups={"heads": {"lr": 0.1}}), False)
    with pytest.raises(UserError, match=r"'head.bias' matches no parameter"):
        optimizer_of(network(), OptimizerConfig(groups={"head": {"lr": 0.1}, "head.bias": {"lr": 0.1}}), False)
    with pytest.raises(UserError, match=r"unknown key 'algo.optimizer.groups.head.eps'"):
        build(OptimizerConfig, {"groups": {"head": {"eps": 0.1}}}, "algo.optimizer.")
    with pytest.raises(UserError, match=r"algo.optimizer.groups.head.lr=0.0: must be a number or null that is > 0"):
        build(OptimizerConfig, {"groups": {"head": {"lr": 0.0}}}, "algo.optimizer.")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("clip_norm", ["global", "tensor"])
def test_clip_norm_global_and_tensor_match_torch(clip_norm: str, compiled: bool) -> None:
    module = network()
    theirs = copy.deepcopy(module)
    settings = {"name": "sgd", "lr": 0.1, "betas": None, "eps": None, "clip_norm": clip_norm}
    optimizer = optimizer_of(module, build(OptimizerConfig, settings), compiled, max_grad_norm=2.0)
    oracle = torch.optim.SGD(theirs.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(5, 3, generator=rng)
        norm = optimizer.minimize(x).norm
        oracle.zero_grad()
        (theirs(x).square().sum() / 5).backward()
        parts = [[*theirs.parameters()]] if clip_norm == "global" else [[each] for each in theirs.parameters()]
        norms = torch.stack([torch.nn.utils.clip_grad_norm_(part, 2.0) for part in parts])
        assert min(norms) < 2.0 or clip_norm == "global"  # not all of them are clipped
        torch.testing.assert_close(norm, norms.norm())
        oracle.step()
        torch.testing.assert_close([*module.parameters()], [*theirs.parameters()])


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_clip_norm_adaptive_matches_closed_form(compiled: bool, grouped: bool) -> None:
    """The gradient of each tensor is limited to 1.5 times the norm of the tensor; this norm is at least 1e-3."""
    module = network()
    module.head.bias.data.zero_()
    settings: dict[str, Any] = {"name": "sgd", "lr": 0.1, "betas": None, "eps": None, "clip_norm": "adaptive"}
    settings |= {"groups": {"head": {"lr": 0.05}}} if grouped else {}
    optimizer = optimizer_of(module, build(OptimizerConfig, settings), compiled, max_grad_norm=1.5)
    rng, clipped = torch.Generator().manual_seed(1), set[bool]()
    for _ in range(3):
        x = torch.randn(5, 3, generator=rng)
        theirs = copy.deepcopy(module)
        (theirs(x).square().sum() / 5).backward()
        norm = optimizer.minimize(x).norm
        squares = 0.0
        for (name, mine), other in zip(module.named_parameters(), theirs.parameters(), strict=True):
            weight, gradient = (np.asarray(part.detach(), np.float64) for part in (other, other.grad))
            squares += (size := np.sqrt((gradient**2).sum())) ** 2
            limit = 1.5 * max(1e-3, np.sqrt((weight**2).sum()))
            clipped.add(bool(size > limit))
            gradient *= min(1.0, limit / size)
            lr = 0.05 if grouped and name.startswith("head") else 0.1
            np.testing.assert_allclose(mine.detach().numpy(), weight - lr * gradient, rtol=1e-5, atol=1e-6)
        assert float(norm) == pytest.approx(np.sqrt(squares), rel=1e-5)
    assert clipped == {False, True}


@pytest.mark.parametrize("clip_norm", ["tensor", "adaptive"])
def test_clip_norm_of_tensors_requires_max_grad_norm(clip_norm: str) -> None:
    with pytest.raises(UserError, match=f"clip_norm={clip_norm}"):
        optimizer_of(network(), build(OptimizerConfig, {"clip_norm": clip_norm}), False)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("clip_norm", ["tensor", "adaptive"])
def test_clip_norm_of_module_with_one_tensor(clip_norm: str, compiled: bool) -> None:
    # Gradient 2 · 5 · (0.6, 0.8): norm 10, limited to 1 or to ‖(3, 4)‖ = 5. The learning rate is 0.1.
    module = nn.Linear(2, 1, bias=False)
    module.weight.data = torch.tensor([[3.0, 4.0]])
    step = step_of(module, clip_norm, compiled, max_grad_norm=1.0)
    step(torch.tensor([[0.6, 0.8]]))
    assert step.compiled == compiled
    length = 1.0 if clip_norm == "tensor" else 5.0
    torch.testing.assert_close(module.weight, torch.tensor([[3 - 0.06 * length, 4 - 0.08 * length]]))


def signs(gradients: Sequence[Tensor], parameters: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Return factors after which each gradient is `limit` times the sign of the gradient and the parameter's size."""
    pairs = zip(gradients, parameters, strict=True)
    return [limit * parameter.abs() / gradient.abs().clamp(min=1e-12) for gradient, parameter in pairs]


@pytest.fixture
def plugin() -> Iterator[None]:
    """Register the clipping rules of a plugin."""
    names, known = [*CLIP_NORMS], dict(CLIPPING)
    clipping.register("signs", ClippingRule(signs))
    clipping.register("all_signs", ClippingRule(signs, whole=True))
    clipping.register("none", ClippingRule(lambda *_: []))
    yield
    CLIP_NORMS[:] = names
    CLIPPING.clear()
    CLIPPING.update(known)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("clip_norm", ["signs", "all_signs"])
def test_plugin_registers_clipping_rule(clip_norm: str, compiled: bool) -> None:
    module = network()
    theirs = copy.deepcopy(module)
    step = step_of(module, clip_norm, compiled, max_grad_norm=0.5)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    step(x)
    assert step.compiled == compiled
    (theirs(x).square().sum() / 5).backward()
    for mine, other in zip(module.parameters(), theirs.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(mine, other - 0.1 * 0.5 * other.abs() * other.grad.sign())


@pytest.mark.usefixtures("plugin")
def test_clipping_rule_of_plugin_is_checked() -> None:
    with pytest.raises(UserError, match="clip_norm 'tensor': another clipping rule has this name"):
        clipping.register("tensor", ClippingRule(signs))
    clipping.register("signs", CLIPPING["signs"])  # the same rule again
    with pytest.raises(
        UserError, match="one of global, tensor, adaptive, signs, all_signs, none; did you mean 'signs'"
    ):
        build(OptimizerConfig, {"clip_norm": "sign"}, "algo.optimizer.")
    optimizer = optimizer_of(network(), build(OptimizerConfig, {"clip_norm": "none"}), False, max_grad_norm=1.0)
    with pytest.raises(UserError, match="clip_norm=none: the clipping rule returned 0 factors for 6 gradients"):
        optimizer.minimize(torch.ones(5, 3))


def test_accumulate_sums_minibatches_and_drop_discards() -> None:
    """Autograd adds to one gradient vector and leaves none on the parameters; dropped gradients do not count."""
    module = network()
    theirs = copy.deepcopy(module)
    optimizer = optimizer_of(module, PLAIN, False)
    batches = [torch.randn(n, 3, generator=torch.Generator().manual_seed(n)) for n in (4, 2, 3)]
    for x in batches:
        optimizer.accumulate(x)
        optimizer.drop()
    for x in batches:
        optimizer.accumulate(x)
    assert all(parameter.grad is None for parameter in module.parameters())
    optimizer.apply()
    (theirs(torch.cat(batches)).square().sum() / 9).backward()
    for mine, other in zip(module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), (other - 0.1 * other.grad).detach(), rtol=1e-5, atol=1e-5)
