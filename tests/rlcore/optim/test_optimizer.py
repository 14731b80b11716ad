"""The optimizer compared with hand calculations and torch, eager and as compiled graph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import AlgorithmConfig, RunConfig
from rlcore.errors import UserError
from rlcore.functional.distributions import Normal
from rlcore.functional.noise import Noise
from rlcore.functional.returns import gae
from rlcore.functional.scan import scan
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import MLPConfig
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import SETTINGS, OptimizerConfig
from rlcore.spec import EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.train.fabric import FabricRanks
from rlcore.types import Context
from tests.graphs import run_graphs
from tests.learning.assembly import compiler_of, fabric

PLAIN = OptimizerConfig(name="sgd", lr=0.1, betas=None, eps=None)


def context(given_fabric: Fabric | None = None, compiled: bool = False, ranks: Any = None) -> Context:
    given_fabric = given_fabric or fabric()
    run = RunConfig(algo=AlgorithmConfig(name="none", total_steps=1), env=EnvConfig(id="none"))
    spec = EnvSpec("none", {}, None)
    compiler = compiler_of(run, spec, 1) if compiled else None
    return Context(run, spec, given_fabric, ranks or FabricRanks(given_fabric), 1, compiler)


def linear() -> nn.Linear:
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -1.0]]))
    return module


def make_optimizer(
    config: OptimizerConfig = PLAIN, given: Context | None = None, **more: Any
) -> tuple[nn.Linear, Optimizer]:
    """Return a linear layer and an optimizer with the loss slope · weight over the given number of samples."""
    module = linear()

    def loss(slope: Tensor, samples: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total = (module.weight * slope).sum() * samples
        return total, samples, {"loss": total.detach() / samples}

    return module, Optimizer(module, loss, config, given or context(), **more)


def take_step(optimizer: Optimizer, slope: Sequence[float], samples: float = 1.0) -> Tensor:
    """Take one step; return the norm of the gradient before clipping."""
    optimizer.accumulate(torch.tensor([slope]), torch.tensor(samples))
    return optimizer.apply()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the graph that would be compiled."""
    monkeypatch.setattr(machine_code, "build", run_graphs)


def test_sgd_step_matches_hand_calculation() -> None:
    # Loss 3·w0 + 4·w1: gradient (3, 4), norm 5; lr 0.1.
    module, optimizer = make_optimizer()
    assert take_step(optimizer, [3, 4]).item() == pytest.approx(5)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.7, -1.4]]))


def test_clipping_scales_gradient_and_reports_unclipped_norm() -> None:
    # Norm 5 clipped to 1: (0.6, 0.8).
    module, optimizer = make_optimizer(max_grad_norm=1.0)
    assert take_step(optimizer, [3, 4]).item() == pytest.approx(5)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.94, -1.08]]))


@pytest.mark.parametrize(("reduction", "expected"), [("mean", [[0.85, -1.15]]), ("sum", [[0.4, -1.6]])])
def test_accumulated_gradients_are_weighted_by_samples(reduction: str, expected: list[Any]) -> None:
    # 3 samples of slope 1 and one of slope 3: mean 1.5, sum 6. Dropped gradients do not count.
    module, optimizer = make_optimizer(reduction=reduction)
    optimizer.accumulate(torch.tensor([[9.0, 9.0]]), torch.tensor(9.0))
    optimizer.drop()
    optimizer.accumulate(torch.ones(1, 2), torch.tensor(3.0))
    optimizer.accumulate(torch.full((1, 2), 3.0), torch.tensor(1.0))
    optimizer.apply()
    torch.testing.assert_close(module.weight.detach(), torch.tensor(expected))


def test_set_lr_applies_to_next_step() -> None:
    module, optimizer = make_optimizer()
    optimizer.set_lr(1.0)
    take_step(optimizer, [1, 1])
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.0, -2.0]]))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("uncompiled")
def test_optimizer_resumes_to_same_bits(name: str, compiled: bool) -> None:
    weights = []
    for interrupted in (False, True):
        config = OptimizerConfig(name=name, momentum=0.9 if "momentum" in SETTINGS[name] else None)
        module, optimizer = make_optimizer(config, context(compiled=compiled))
        for step in range(4):
            if interrupted and step == 2:
                state = nested_state.decode(*nested_state.encode(optimizer.state_dict()))
                weight = module.weight.detach().clone()
                # The state is the same for eager and compiled optimizers.
                module, optimizer = make_optimizer(config, context(compiled=compiled))
                optimizer.load_state_dict(state)
                with torch.no_grad():
                    module.weight.copy_(weight)
            take_step(optimizer, [3, step + 1])
        weights.append(module.weight.detach().numpy().copy())
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("name", SETTINGS)
def test_grad_scaler_unscales_before_clipping_and_skips_overflow(name: str) -> None:
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    half = Fabric(accelerator="cpu", devices=1, plugins=precision)
    config = OptimizerConfig(name=name, lr=0.1, eps=None, momentum=None)
    module, optimizer = make_optimizer(config, context(half), max_grad_norm=1.0)
    before, scale = module.weight.detach().clone(), optimizer.scale.value.item()
    assert take_step(optimizer, [3, 4]).item() == pytest.approx(5)
    after = module.weight.detach().clone()
    assert not torch.equal(before, after)
    if name == "sgd":
        torch.testing.assert_close(before - after, torch.tensor([[0.06, 0.08]]))
    take_step(optimizer, [3, torch.inf])
    assert torch.equal(module.weight, after)
    assert (optimizer.scale.value.item(), optimizer.count.item()) == (scale / 2, 1)


# Several modules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_optimizer_trains_only_its_own_module(compiled: bool) -> None:
    """The loss of an actor passes through a critic: the critic gets no gradient; its newest weights are used."""
    actor, critic = linear(), linear()
    given = context(compiled=compiled)

    def actor_loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return critic(torch.cat([actor(x), actor(x)], -1)).sum(), torch.tensor(1.0), {}

    def critic_loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return critic(x).sum(), torch.tensor(1.0), {}

    trains_actor = Optimizer(actor, actor_loss, PLAIN, given, uses=[critic])
    trains_critic = Optimizer(critic, critic_loss, PLAIN, given)
    x = torch.tensor([[1.0, 2.0]])
    for _ in range(2):
        trains_actor.accumulate(x)
        trains_actor.apply()
        assert critic.weight.grad is None
        trains_critic.accumulate(x)
        trains_critic.apply()
    # The critic's weights sum to 0 at first, and to -0.3 after its step: d actor = 0.1 · 0.3 · x in iteration 2.
    torch.testing.assert_close(critic.weight.detach(), torch.tensor([[0.8, -1.4]]))
    torch.testing.assert_close(actor.weight.detach(), torch.tensor([[1.03, -0.94]]))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_used_modules_get_precision_of_networks(compiled: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    actor, critic = (MLP(2, MLPConfig(dense_units=4), rng, outputs=2) for _ in range(2))
    target = copy.deepcopy(critic)  # trained by no optimizer
    given = context(fabric("bf16-true"), compiled=compiled)

    def loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total = (critic(actor(x)) - target(actor(x)) + actor(x)).sum()
        return total, torch.tensor(1.0), {"loss": total.detach()}

    optimizer = Optimizer(actor, loss, PLAIN, given, uses=[critic, target])
    before = [p.clone() for p in actor.parameters()]
    x = torch.tensor([[1.0, 2.0]])
    assert optimizer.accumulate(x)["loss"].dtype == torch.float32
    optimizer.apply()
    assert {p.dtype for module in (actor, critic, target) for p in module.parameters()} == {torch.bfloat16}
    assert any(not torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
            slow.lerp_(fast, 0.5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_loss_runs_under_mixed_precision(compiled: bool) -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    seen: list[torch.dtype] = []

    def loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        y = module(x)
        seen.append(y.dtype)
        each = y.float().square().sum(-1)
        total = each.dot(torch.ones(len(each)))  # sums over samples stay float32
        return total, torch.tensor(float(len(x))), {"loss": total.detach()}

    norms: dict[str, float] = {}
    for precision in ("32-true", "bf16-mixed"):
        torch.manual_seed(0)
        module = nn.Linear(3, 4)
        plain = copy.deepcopy(module)
        optimizer = Optimizer(module, loss, PLAIN, context(fabric(precision), compiled=compiled))
        assert optimizer.accumulate(x)["loss"].dtype == torch.float32
        norms[precision] = optimizer.apply().item()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            expected = plain(x).float().square().sum() / len(x)
        expected.backward()
        gradient = torch.cat([p.grad.flatten() for p in plain.parameters()])
        assert norms[precision] == pytest.approx(gradient.norm().item(), rel=1e-6)
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert norms["bf16-mixed"] != pytest.approx(norms["32-true"], rel=1e-6)


@pytest.mark.usefixtures("uncompiled")
def test_undeclared_module_leaves_optimizer_eager(
    caplog: pytest.LogCaptureFixture,
) -> None:
    actor, critic = linear(), linear()

    def loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return critic(torch.cat([actor(x), actor(x)], -1)).sum(), torch.tensor(1.0), {}

    optimizer = Optimizer(actor, loss, PLAIN, context(compiled=True))
    with caplog.at_level("WARNING"):
        optimizer.accumulate(torch.ones(1, 2))
    assert (
        not optimizer.execution.compiled
        and "not its inputs; pass the module that contains them to the optimizer in the argument `uses`" in caplog.text
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_two_optimizers_train_same_encoder(compiled: bool) -> None:
    encoder, given = linear(), context(compiled=compiled)
    both = nn.ModuleList([encoder, nn.Linear(1, 1, bias=False)])
    with torch.no_grad():
        both[1].weight.fill_(2.0)

    def through_both(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return both[1](both[0](x)).sum(), torch.tensor(1.0), {}

    def alone(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return encoder(x).sum(), torch.tensor(1.0), {}

    x = torch.tensor([[1.0, 1.0]])
    for optimizer in (Optimizer(encoder, alone, PLAIN, given), Optimizer(both, through_both, PLAIN, given)):
        optimizer.accumulate(x)
        optimizer.apply()
    # First -0.1, then -0.1 · 2: the encoder has both steps.
    torch.testing.assert_close(encoder.weight.detach(), torch.tensor([[0.7, -1.3]]))
    torch.testing.assert_close(both[1].weight.detach(), torch.tensor([[2.02]]))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_two_optimizers_keep_both_steps_of_encoder(compiled: bool) -> None:
    encoder, given = linear(), context(compiled=compiled)
    both = nn.ModuleList([encoder, nn.Linear(1, 1, bias=False)])

    def alone(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return encoder(x).sum(), torch.tensor(1.0), {}

    def of_both(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return both[0](x).sum() + 0 * both[1].weight.sum(), torch.tensor(1.0), {}

    optimizers = Optimizer(encoder, alone, PLAIN, given), Optimizer(both, of_both, PLAIN, given)
    for optimizer in optimizers:
        optimizer.accumulate(torch.tensor([[1.0, 1.0]]))
    for optimizer in optimizers:
        optimizer.apply()
    torch.testing.assert_close(encoder.weight.detach(), torch.tensor([[0.8, -1.2]]))


@pytest.mark.usefixtures("uncompiled")
def test_compiled_loss_draws_same_noise_as_eager() -> None:
    ends = []
    for compiled in (False, True):
        module, noise = linear(), Noise(3, "loss")

        def loss(obs: Tensor, rng: Noise, module: nn.Linear = module) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            total = (module(obs).sum(-1) * rng.normal(len(obs)) + module.weight.sum() * rng.uniform()).sum()
            return total, torch.tensor(float(len(obs))), {"loss": total.detach()}

        optimizer = Optimizer(module, loss, PLAIN, context(compiled=compiled))
        metrics = [optimizer.minimize(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), noise).metrics["loss"] for _ in range(3)]
        assert optimizer.execution.compiled is compiled
        ends.append((module.weight.detach(), torch.stack(metrics), noise.state_dict()["host"]))
    torch.testing.assert_close(ends[0][:2], ends[1][:2], rtol=1e-6, atol=0)
    assert str(ends[0][2]) == str(ends[1][2])


class Double(torch.autograd.Function):
    """Function without `setup_context`, which the transforms of torch.func refuse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def total_of_scan(x: Tensor) -> Tensor:
    """Return the running total of x [T, B], by a scan that needs no gradient."""
    return scan(lambda total, row, _: (total + row,) * 2, torch.zeros(x.shape[1]), x)[1]


@pytest.mark.parametrize("part", [Double.apply, total_of_scan], ids=["autograd.Function", "scan"])
@pytest.mark.usefixtures("uncompiled")
def test_gradient_of_any_autograd_function_is_compiled(part: Any) -> None:
    weights = []
    for compiled in (False, True):
        module = linear()

        def loss(x: Tensor, module: nn.Linear = module) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            found = part(module(x)) if part == Double.apply else module(part(x))
            return found.square().sum(), torch.tensor(1.0), {}

        optimizer = Optimizer(module, loss, PLAIN, context(compiled=compiled))
        optimizer.minimize(torch.tensor([[1.0, 2.0], [0.5, -1.0]]))
        assert optimizer.execution.compiled is compiled
        weights.append(module.weight.detach())
    torch.testing.assert_close(*weights)


@pytest.mark.usefixtures("uncompiled")
def test_compiled_step_reads_replaced_buffer() -> None:
    module = linear()
    module.register_buffer("scale", torch.tensor(1.0))

    def loss(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return (module(x) * module.scale).sum(), torch.tensor(1.0), {}

    optimizer = Optimizer(module, loss, PLAIN, context(compiled=True))
    optimizer.accumulate(torch.ones(1, 2))
    optimizer.drop()
    module.scale = torch.tensor(3.0)  # a constant of the graph would keep the first tensor
    optimizer.accumulate(torch.ones(1, 2))
    optimizer.apply()
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.7, -1.3]]))


class Twice:
    """Two ranks; the rank that is not this process has the same gradient and three times the samples."""

    rank, size = 0, 2

    def sum(self, value: Tensor) -> Tensor:
        other = value.clone()
        other[-1] *= 3
        return value + other


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_gradients_are_summed_over_ranks_before_clipping(compiled: bool) -> None:
    module, optimizer = make_optimizer(given=context(compiled=compiled, ranks=Twice()), max_grad_norm=2.0)
    # Gradients (6, 8) of both together over 4 samples: (1.5, 2), norm 2.5, clipped to 2.
    assert take_step(optimizer, [3, 4]).item() == pytest.approx(2.5)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[1 - 0.12, -1 - 0.16]]))


def test_config_refuses_setting_of_other_optimizer() -> None:
    with pytest.raises(UserError, match=r"algo.optimizer.momentum=0.9: adam has no momentum; set it to null"):
        build(OptimizerConfig, {"name": "adam", "momentum": 0.9}, "algo.optimizer.")
    with pytest.raises(UserError, match=r"algo.optimizer.name=adm: must be one of .*did you mean 'adam'"):
        build(OptimizerConfig, {"name": "adm"}, "algo.optimizer.")


def branching(module: nn.Linear) -> Any:
    """Return a loss that cannot be traced: its control flow depends on a number."""

    def loss(slope: Tensor, samples: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total = (module.weight * slope).sum() * samples
        return (total * 2 if total > 0 else total), samples, {"loss": total.detach()}

    return loss


class AsModule(nn.Module):
    """Loss that is a module."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__()
        self.held = [module]

    def forward(self, slope: Tensor, samples: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total = (self.held[0].weight * slope).sum() * samples
        return total, samples, {"loss": total.detach()}


@pytest.mark.parametrize("make", [branching, AsModule, lambda module: functools.partial(AsModule(module))])
def test_optimizer_accepts_any_callable_loss(make: Any, uncompiled: None, caplog: pytest.LogCaptureFixture) -> None:
    weights = []
    for compiled in (False, True):
        module = linear()
        optimizer = Optimizer(module, make(module), PLAIN, context(compiled=compiled))
        take_step(optimizer, [3, 4])
        take_step(optimizer, [-3, 1])
        weights.append(module.weight.detach())
    torch.testing.assert_close(*weights)
    eager = "is not compiled and runs as eager code" in caplog.text
    assert eager == (make is branching) == (not optimizer.execution.compiled)
    # It continues as it began: a loss that was eager stays eager, and one that can no longer be traced is refused.
    again = Optimizer(linear(), make(linear()), PLAIN, context(compiled=True))
    again.load_state_dict(optimizer.state_dict())
    assert again.execution.compiled == (make is not branching)
    other = Optimizer(linear(), branching(linear()), PLAIN, context(compiled=True))
    other.load_state_dict(optimizer.state_dict())
    with nullcontext() if make is branching else pytest.raises(UserError, match="began with compiled gradient steps"):
        take_step(other, [3, 4])


def test_facts_names_are_empty_for_foreign_code(uncompiled: None) -> None:
    """Code of users may read a number or a file that has changed since, so it is traced at every start."""

    class Mine(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    replaced: Any = nn.Identity()
    hooked: Any = nn.Identity()
    replaced.forward = lambda input: 2 * input
    hooked.register_forward_hook(lambda module, given, found: 2 * found)
    example = [torch.ones(2)]
    ours: list[Any] = [nn.Sequential(nn.Linear(2, 2)), MLP.forward, Normal]
    theirs: list[Any] = [
        nn.Sequential(Mine(2, 2)),
        nn.Sequential(replaced),
        nn.Sequential(hooked),
        torch.fx.symbolic_trace(nn.Linear(2, 2)),
        Mine,
        AsModule(linear()).forward,
        make_optimizer,
        functools.partial(gae),
    ]
    for made_of, known in [*((part, True) for part in ours), *((part, False) for part in theirs)]:
        names = machine_code.Facts({}, 0, list, [nn.Tanh(), made_of]).names(example)
        assert len(names) == (2 if known else 0), made_of
