"""Gradient steps and targets, by hand and as the graph that would be compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore.compiled import machine_code
from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.functional.scan import scan
from rlcore.nn.encoder import Normalizer
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from tests.graphs import run_graphs
from tests.rlcore.optim.test_optimizer import PLAIN, context

ONE = torch.tensor(1.0)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the graph that would be compiled."""
    monkeypatch.setattr(machine_code, "build", run_graphs)


class Critic(nn.Module):
    """Head on a shared encoder; counts the inputs."""

    seen: Tensor

    def __init__(self, encoder: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(1, 1, bias=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)).squeeze(-1)


class Two:
    """Two losses in turn on one encoder, the second with an output of the first; and a target."""

    def __init__(self, compiled: bool, config: OptimizerConfig = PLAIN) -> None:
        given = context(compiled=compiled)
        self.critic = Critic(nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            self.critic.encoder.weight.copy_(torch.tensor([[1.0, -1.0]]))
            self.critic.head.weight.fill_(2.0)
        self.target = Target(self.critic, given)
        uses = [self.target.module]
        self.first = Optimizer(self.critic, self.of_critic, config, given, max_grad_norm=1.0, uses=uses)
        self.second = Optimizer(self.critic.encoder, self.of_encoder, config, given)
        self.step = Step(self.gradient_step, [self.first, self.second], [self.target], given)

    def of_critic(self, x: Tensor, noise: Tensor) -> Any:
        self.critic.seen = self.critic.seen + x.detach().sum()
        found = self.critic(x)
        error = found - self.target.module(x + noise).detach() - 1
        return error.square().sum(), torch.tensor(len(x)), {"error": error.mean()}, {"found": found.detach()}

    def of_encoder(self, x: Tensor, found: Tensor) -> Any:
        return (self.critic.encoder(x).squeeze(-1) * found).sum(), ONE, {"found": found.mean()}

    def gradient_step(self, batch: dict[str, Tensor], tau: Tensor, rng: Noise) -> Any:
        first = self.first.minimize(batch["x"], rng.normal(*batch["x"].shape))
        second = self.second.minimize(batch["x"], first.aux["found"])
        self.target.update(self.first, tau)
        return first.metrics | second.metrics | {"norm": first.norm}, {"found": first.aux["found"]}

    def state(self) -> dict[str, Tensor]:
        modules = {"critic": self.critic, "target": self.target.module}
        found = {f"{at}.{name}": value for at, module in modules.items() for name, value in module.state_dict().items()}
        slots = {f"{i}.{name}": v for i, o in enumerate((self.first, self.second)) for name, v in o.slots.items()}
        return found | slots | {"count": self.second.count}


def test_target_update_interpolates_parameters_and_copies_buffers() -> None:
    critic, given = Critic(nn.Linear(2, 1, bias=False)), context()
    target = Target(critic, given)
    optimizer = Optimizer(critic, lambda: None, PLAIN, given)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        target.module.head.weight.fill_(1.0)
        critic.head.weight.fill_(3.0)
        critic.seen = torch.tensor(7.0)
    target.update(optimizer, 0.25)
    assert target.module.head.weight.item() == 1.5 and critic.head.weight.item() == 3.0  # 1 + ¼ (3 - 1)
    assert target.module.seen.item() == 7 and target.module.seen is not critic.seen
    assert not any(parameter.requires_grad for parameter in target.module.parameters())
    other = Target(Critic(nn.Linear(2, 1, bias=False)), given)
    other.load_state_dict(copy.deepcopy(target.state_dict()))
    other.update(optimizer, 0.0)
    assert other.module.head.weight.item() == 1.5


@pytest.mark.parametrize("compiled", [False, True])
def test_target_update_with_tau_one_copies_exactly(compiled: bool) -> None:
    two = Two(compiled)
    rng, kept = Noise(0, "probe"), {}
    for n in range(1, 5):
        two.step({"x": torch.full((2, 2), 0.1 * n)}, 1.0 if n % 2 == 0 else 0.0, rng=rng)
        target = copy.deepcopy(two.target.module.state_dict())
        if n % 2 == 0:
            kept = two.critic.state_dict()
            assert kept["seen"] != 0
        elif not kept:
            kept = Two(compiled).critic.state_dict()
        assert all(torch.equal(target[name], value) for name, value in kept.items()), n
        kept = copy.deepcopy(kept)


def test_target_follows_parameters_of_other_optimizer() -> None:
    encoder, given = nn.Linear(2, 1, bias=False), context()
    of_encoder = Optimizer(encoder, lambda x: (encoder(x).sum(), ONE, {}), PLAIN, given)
    critic = Critic(encoder)
    of_critic = Optimizer(critic, lambda: None, PLAIN, given)  # pyright: ignore[reportArgumentType]
    target = Target(critic, given)
    of_encoder.minimize(torch.ones(1, 2))
    target.update(of_critic, 1.0)
    torch.testing.assert_close(target.module.encoder.weight.data, encoder.weight.data)


def test_target_matches_parameters_by_name_with_groups() -> None:
    for first in ("encoder", "head"):  # one of the two orders differs from that of the module
        critic, given = Critic(nn.Linear(2, 1, bias=False)), context()
        target = Target(critic, given)
        config = OptimizerConfig(groups={first: {"lr": 0.5}, "*": {"lr": 0.1}})
        optimizer = Optimizer(critic, lambda: None, config, given)  # pyright: ignore[reportArgumentType]
        with torch.no_grad():
            critic.encoder.weight.copy_(torch.tensor([[5.0, 6.0]]))
            critic.head.weight.fill_(7.0)
        target.update(optimizer, 1.0)
        for name, value in critic.named_parameters():
            assert torch.equal(target.module.get_parameter(name), value), (first, name)


def test_target_state_dict_restores_normalizer() -> None:
    def normalising() -> nn.Module:
        return nn.Sequential(Normalizer(2, 10.0), nn.Linear(2, 1))

    module, given = normalising(), context()
    target = Target(module, given)
    optimizer = Optimizer(module, lambda: None, PLAIN, given)  # pyright: ignore[reportArgumentType]
    module.get_submodule("0").update(torch.tensor([[1.0, 2.0], [3.0, 8.0]]))  # pyright: ignore[reportCallIssue]
    target.update(optimizer, 0.5)
    other = Target(normalising(), given)
    other.load_state_dict(copy.deepcopy(target.state_dict()))
    obs = torch.tensor([[4.0, -1.0]])
    assert torch.equal(other.module(obs), target.module(obs))


@pytest.mark.parametrize("config", [PLAIN, OptimizerConfig(lr=0.1)], ids=["sgd", "adam"])
def test_compiled_step_of_two_losses_matches_eager(config: OptimizerConfig) -> None:
    eager, compiled = Two(False, config), Two(True, config)
    rngs = [Noise(0, "probe") for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for n in range(3):
        x, tau = torch.randn(4, 2, generator=generator), 0.0 if n == 1 else 0.5
        metrics = [two.step({"x": x}, tau, rng=rng) for two, rng in zip((eager, compiled), rngs, strict=True)]
        torch.testing.assert_close(metrics[1], metrics[0])
        assert metrics[0].keys() == {"error", "found", "norm"} and eager.step.aux["found"].shape == (4,)
        torch.testing.assert_close(compiled.step.aux, eager.step.aux)
        torch.testing.assert_close(compiled.state(), eager.state())
    assert compiled.step.compiled and not eager.step.compiled
    assert rngs[0].state_dict() == rngs[1].state_dict()
    assert eager.state()["critic.seen"] == eager.state()["target.seen"] != 0


def test_untraceable_step_runs_eagerly_once(caplog: pytest.LogCaptureFixture) -> None:
    class Branching(Two):
        def of_encoder(self, x: Tensor, found: Tensor) -> Any:
            total, weight, metrics = super().of_encoder(x, found)
            return (total * 2 if total > 0 else total), weight, metrics

    eager, compiled, x = Branching(False), Branching(True), torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    for two in (eager, compiled):
        two.step({"x": x}, 0.5, rng=Noise(0, "probe"))
    torch.testing.assert_close(compiled.state(), eager.state())
    assert "is not compiled and runs as eager code" in caplog.text and not compiled.step.compiled
    began = Two(True)
    began.step({"x": x}, 0.5, rng=Noise(0, "probe"))
    later = Branching(True)
    later.step.load_state_dict(began.step.state_dict())
    with pytest.raises(UserError, match="began with compiled gradient steps"):
        later.step({"x": x}, 0.5, rng=Noise(0, "probe"))


def test_compiled_step_refuses_other_input_shapes() -> None:
    two = Two(True)
    two.step({"x": torch.ones(4, 2)}, 0.5, rng=Noise(0, "probe"))
    with pytest.raises(AssertionError, match="other shapes"):
        two.step({"x": torch.ones(3, 2)}, 0.5, rng=Noise(0, "probe"))


class Joint:
    """Model, actor and critic with one loss and one optimizer; the critic's loss also trains the model."""

    def __init__(self, compiled: bool) -> None:
        given = context(compiled=compiled)
        torch.manual_seed(0)
        self.net = nn.ModuleDict({"model": nn.Linear(2, 3), "actor": nn.Linear(3, 2), "critic": nn.Linear(3, 1)})
        self.target = Target(self.net["critic"], given)
        config = OptimizerConfig(lr=0.1, eps=1e-3)
        self.optimizer = Optimizer(self.net, self.loss, config, given, uses=[self.target.module])
        self.step = Step(self.gradient_step, [self.optimizer], [self.target], given)

    def loss(self, x: Tensor) -> Any:
        found = joint_losses(self.net, self.target.module, x)
        return found.sum(), torch.tensor(float(len(x))), {"loss": found.detach().mean()}

    def gradient_step(self, x: Tensor) -> dict[str, Tensor]:
        metrics = self.optimizer.minimize(x).metrics
        self.target.update(self.optimizer, 0.25)
        return metrics


def joint_losses(net: nn.ModuleDict, target: nn.Module, x: Tensor) -> Tensor:
    """Sum the losses of model, actor and critic for each row of x [N, 2]."""
    latent = net["model"](x).tanh()
    model = (latent[:, :2] - x).square().sum(-1)
    actor = -(net["actor"](latent).log_softmax(-1)[:, 0] * net["critic"](latent).detach().squeeze(-1))
    return model + actor + (net["critic"](latent) - target(latent).detach() - 1).square().squeeze(-1)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_optimizer_of_several_networks_matches_torch(compiled: bool) -> None:
    joint = Joint(compiled)
    net = copy.deepcopy(joint.net)
    target = copy.deepcopy(net["critic"])
    adam = torch.optim.Adam(net.parameters(), lr=0.1, eps=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = torch.randn(5, 2, generator=generator)
        joint.step(x)
        adam.zero_grad()
        joint_losses(net, target, x).mean().backward()
        adam.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net["critic"].parameters(), strict=True):
                slow.lerp_(fast, 0.25)
    assert joint.step.compiled == compiled
    for module, expected in ((joint.net, net), (joint.target.module, target)):
        for name, value in expected.named_parameters():
            torch.testing.assert_close(module.get_parameter(name).data, value.data, rtol=0, atol=1e-6)


class Recurrent:
    """Recurrent loss over time with a trained cell in the loop and a trained head after it."""

    def __init__(self, compiled: bool) -> None:
        given = context(compiled=compiled)
        torch.manual_seed(0)
        self.net = nn.ModuleDict({"cell": nn.GRUCell(2, 3), "head": nn.Linear(3, 1)})
        self.optimizer = Optimizer(self.net, self.loss, PLAIN, given)
        self.step = Step(lambda *inputs: self.optimizer.minimize(*inputs).metrics, [self.optimizer], [], given)

    def loss(self, carry: Tensor, x: Tensor, is_first: Tensor) -> Any:
        cell = self.net["cell"]

        def forward(h: Tensor, row: tuple[Tensor, Tensor], params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            x, first = row
            h = functional_call(cell, params, (x, h * ~first.unsqueeze(-1)))
            return h, h

        _, h = scan(forward, carry, (x, is_first), dict(cell.named_parameters()))
        total = self.net["head"](h).square().sum()
        return total, torch.tensor(float(len(x))), {"loss": total.detach()}


def test_compiled_step_with_scan_matches_eager() -> None:
    written, compiled = (Recurrent(each) for each in (False, True))
    for _ in range(3):
        given = torch.randn(4, 3), torch.randn(7, 4, 2), torch.rand(7, 4) < 0.3
        one, other = written.step(*given), compiled.step(*given)
        torch.testing.assert_close(one, other)
    assert compiled.step.compiled
    for p, q in zip(written.net.parameters(), compiled.net.parameters(), strict=True):
        torch.testing.assert_close(p, q)
