"""Update rules compared with torch and with published equations in NumPy, functional and in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import machine_code
from rlcore.compiled.package import Compiled, TracedFunction
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.optim import rules
from rlcore.optim.clipping import CLIPPING, ClippingRule
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import SETTINGS, OptimizerConfig
from rlcore.optim.rules import BLOCK, Rule, Slots
from rlcore.train.trainer import Trainer
from tests.graphs import run_graphs
from tests.rlcore.optim.test_optimizer import context, make_optimizer, take_step

ORACLES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("adam", {"betas": (0.8, 0.9), "eps": 1e-3}),
    ("adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("adamw", {"weight_decay": 0.1}),
    ("rmsprop", {"alpha": 0.9, "weight_decay": 0.1}),
    ("rmsprop", {"centered": True, "momentum": 0.9}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "dampening": 0.5}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_rule_matches_torch_optim(name: str, settings: dict[str, Any], in_place: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    size = BLOCK // 8 + 7  # more than one block of float64
    theirs = nn.Parameter(torch.randn(size, generator=rng, dtype=torch.float64))
    ours = theirs.detach().clone()
    oracle = ORACLES[name]([theirs], lr=0.1, **settings)
    given: dict[str, Any] = {"betas": None, "eps": None} | settings
    config = OptimizerConfig(name=name, lr=0.1, **given)
    state = rules.slots(config, ours)
    for step in range(1, 6):
        theirs.grad = torch.randn(size, generator=rng, dtype=torch.float64)
        arguments = config, ours, theirs.grad, state, number(step), number(0.1)
        if in_place:
            rules.update_in_place(*arguments)
        else:
            ours, state = rules.update(*arguments)
        oracle.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-12)


def test_laprop_matches_published_algorithm() -> None:
    """Algorithm 1 with ν = β₂ and μ = β₁, and decoupled decay: θ ← θ - α (m / cₘ + λ θ) with another α in each step."""
    mu, nu, eps, decay = 0.8, 0.95, 1e-3, 0.1
    config = OptimizerConfig(name="laprop", betas=(mu, nu), eps=eps, weight_decay=decay)
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(5)
    ours = torch.from_numpy(theta.copy())
    state = rules.slots(config, ours)
    m, n = np.zeros(5), np.zeros(5)
    for t, rate in enumerate((0.1, 0.1, 0.03, 0.2), 1):
        g = rng.standard_normal(5) * 10.0 ** rng.integers(-3, 3, 5)
        n = nu * n + (1 - nu) * g**2
        m = mu * m + (1 - mu) * g / (np.sqrt(n / (1 - nu**t)) + eps)
        theta = theta - rate * (m / (1 - mu**t) + decay * theta)
        rules.update_in_place(config, ours, torch.from_numpy(g), state, number(t), number(rate))
        np.testing.assert_allclose(ours.numpy(), theta, rtol=0, atol=1e-14)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_tf_matches_formula_of_tensorflow(centered: bool) -> None:
    # tf.compat.v1: rms = 1 at first; mom = momentum·mom + lr·g / sqrt(rms - mg² + ε); θ -= mom.
    config = OptimizerConfig(
        name="rmsprop_tf", lr=0.1, alpha=0.9, eps=1e-2, momentum=0.5, centered=centered, betas=None
    )
    theta = torch.tensor([1.0], dtype=torch.float64)
    state = rules.slots(config, theta)
    value, rms, mg, mom = 1.0, 1.0, 0.0, 0.0
    for step, g in enumerate((0.3, -2.0, 0.7), 1):
        rms, mg = 0.9 * rms + 0.1 * g * g, 0.9 * mg + 0.1 * g
        mom = 0.5 * mom + 0.1 * g / (rms - (mg * mg if centered else 0.0) + 1e-2) ** 0.5
        value -= mom
        theta, state = rules.update(config, theta, torch.tensor([g]).double(), state, number(step), number(0.1))
        assert theta.item() == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("compiled", [False, True])
def test_warmup_increases_learning_rate_linearly(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Slope 1, α = 0.1, 4 steps: 0 + ¼ + ½ + ¾ + 1 of α; another α of a schedule is warmed up in the same way.
    monkeypatch.setattr(machine_code, "build", run_graphs)
    config = OptimizerConfig(name="sgd", lr=0.1, betas=None, eps=None, warmup=4)
    module, optimizer = make_optimizer(config, context(compiled=compiled))
    for expected in (1.0, 0.975, 0.925, 0.85, 0.75):
        take_step(optimizer, [1, 1])
        assert module.weight[0, 0].item() == pytest.approx(expected, abs=1e-6)
    again, other = make_optimizer(config, context(compiled=compiled))
    other.load_state_dict(optimizer.state_dict() | {"count": number(1)})
    other.set_lr(0.2)
    take_step(other, [1, 1])
    assert again.weight[0, 0].item() == pytest.approx(1 - 0.2 * 1 / 4, abs=1e-6)


class _Sizes(TorchDispatchMode):
    """Record the largest tensor that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {tensor.data_ptr() for tensor in _tensors(args)}
        sizes = [tensor.numel() for tensor in _tensors([out]) if tensor.data_ptr() not in known and not _view(tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return out


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _view(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("name", SETTINGS)
def test_optimizer_step_allocates_only_blocks(name: str) -> None:
    module = nn.Linear(2 * BLOCK // 4, 1, bias=False)
    config = OptimizerConfig(name=name, betas=None, eps=None, momentum=0.5 if "momentum" in SETTINGS[name] else None)
    loss = lambda x: (module(x).sum(), torch.tensor(1.0), {})  # noqa: E731
    optimizer = Optimizer(module, loss, config, context(), max_grad_norm=1.0)
    x = torch.ones(1, module.in_features)
    optimizer.minimize(x)
    held = [optimizer.parameters.vector, *optimizer.slots.values()]
    before = [tensor.clone() for tensor in held]
    optimizer.accumulate(x)
    with _Sizes() as sizes:
        optimizer.apply()
    assert sizes.largest <= BLOCK // 4 < module.in_features
    after = [optimizer.parameters.vector, *optimizer.slots.values()]
    assert all(mine is theirs for mine, theirs in zip(held, after, strict=True))
    assert all(not torch.equal(mine, theirs) for mine, theirs in zip(before, after, strict=True))


def _sign(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    average = state["average"] + config["alpha"] * (gradient - state["average"])
    return vector - lr.to(vector) * average.sign(), {"average": average}


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the update rule of a plugin."""
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    rules.register("sign", Rule(lambda _: ["average"], _sign), {"alpha": 0.5})
    yield
    SETTINGS.pop("sign")


@pytest.mark.usefixtures("sign")
@pytest.mark.parametrize("compiled", [False, True])
def test_plugin_registers_update_rule(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Averages of the slopes (1, -3), then (-2, -2), by halves: (½, -1½) and (-¾, -1¾).
    monkeypatch.setattr(machine_code, "build", run_graphs)
    config = build(OptimizerConfig, {"name": "sign", "lr": 0.1, "betas": None, "eps": None}, "algo.optimizer.")
    module, optimizer = make_optimizer(config, context(compiled=compiled))
    for slope, expected in (([1, -3], [[0.9, -0.9]]), ([-2, -2], [[1.0, -0.8]])):
        take_step(optimizer, slope)
        torch.testing.assert_close(module.weight.detach(), torch.tensor(expected))
    with pytest.raises(UserError, match="momentum=0.5: sign has no momentum"):
        build(OptimizerConfig, {"name": "sign", "momentum": 0.5, "eps": None, "betas": None}, "algo.optimizer.")
    with pytest.raises(UserError, match="optimizer 'adam': another update rule has this name"):
        rules.register("adam", Rule(lambda _: [], _sign), {})


def _descend(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    return vector - lr.to(vector) * gradient, state


def train_by_rule(settings: dict[str, Any], compiled: bool) -> list[Tensor]:
    """Return the weights of PPO after one update; `settings` are those of the optimizer."""
    optimizer = settings | {"betas": None, "eps": None}
    values = {"total_steps": 1000, "dense_units": 4, "rollout_steps": 4, "update_epochs": 1}
    values |= {"max_grad_norm": 0.5, "optimizer": optimizer}
    env = EnvConfig(id="CartPole-v1", num_envs=2, vectorization="single")
    algo = build(ALGORITHMS["ppo"].Config, values, "algo.")
    training = Trainer(RunConfig(algo=algo, env=env, seed=0), compiled=compiled)
    training.collect()
    training.update()
    return [parameter.detach().clone() for parameter in training.learner.agent.parameters()]


def _clip(gradients: Sequence[Tensor], parameters: Sequence[Tensor], limit: float) -> list[Tensor]:
    return [limit / gradient.norm() for gradient in gradients]


def _shorten(gradients: Sequence[Tensor], parameters: Sequence[Tensor], limit: float) -> list[Tensor]:
    return [limit * 0.1 / gradient.norm() for gradient in gradients]


@pytest.mark.parametrize("edited", ["update rule", "clipping rule"])
@pytest.mark.usefixtures("sign")
def test_compiled_step_uses_edited_rule_of_a_plugin(edited: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, Any] = {}  # the cache: key that is known before tracing -> traced graph and notes

    def build_graphs(functions: Sequence[TracedFunction]) -> list[Compiled]:
        codes = run_graphs(functions)
        stored.update({str(f.name): (code, f.notes) for f, code in zip(functions, codes, strict=True) if f.name})
        return codes

    monkeypatch.setattr(machine_code, "build", build_graphs)
    monkeypatch.setattr(
        machine_code, "_find_known", lambda names: next((stored[n] for n in names if n in stored), None)
    )
    monkeypatch.setattr("rlcore.train.trainer.warm_up", lambda *_: None)
    own: dict[str, Any] = {"name": "sign", "lr": 0.1}
    if edited == "clipping rule":
        monkeypatch.setitem(CLIPPING, "tensor", ClippingRule(_clip))  # as if a plugin had registered this rule
        own = {"name": "sgd", "lr": 0.1, "clip_norm": "tensor"}
    train_by_rule(own, compiled=True)
    # As after an edit of the plugin, in a new process.
    if edited == "update rule":
        rules.RULES["sign"] = Rule(lambda _: ["average"], _descend)
    else:
        monkeypatch.setitem(CLIPPING, "tensor", ClippingRule(_shorten))
    for mine, expected in zip(train_by_rule(own, compiled=True), train_by_rule(own, compiled=False), strict=True):
        torch.testing.assert_close(mine, expected)
