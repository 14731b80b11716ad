"""Dreamer V3.5's losses, optimizer and norm against its author's code, on the same numbers; mutants fail."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dreamer_v3_5 import behavior as losses
from rlcore.algorithms.dreamer.dreamer_v3_5.config import ActorConfig, Config, CriticConfig, WorldModelConfig
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import RMSNorm
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.latent_actor import scaled_normal
from rlcore.algorithms.dreamer.latents import unimix
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment
from rlcore.algorithms.dreamer.world_keys import MomentsConfig
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import TwoHot
from rlcore.functional.stats import LossTerms
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.spec import ActionSpec, EnvSpec
from rlcore.types import SingleProcess
from tests.golden.dreamers import near
from tests.golden.fixtures import arrays, part, tensors
from tests.golden.mutants import Mutant, swap
from tests.golden.test_dreamer_v3_5_golden import MUTANTS
from tests.learning.assembly import context

NVEC, WITHIN = (3, 2), 5e-7
BEHAVIOR: Any = losses.Behavior  # its methods are called with other objects than behaviors
SPEC = EnvSpec("none", {}, ActionSpec("Discrete", (), "int64", (2,), (0,)))
compare = partial(near, within=WITHIN)


def given(prefix: str) -> dict[str, Any]:
    return tensors(part(arrays("author_dreamer_v3_5"), prefix))


def settings(prefix: str = "settings/") -> dict[str, float]:
    return {name: value.item() for name, value in given(prefix).items()}


def make_behavior(value: Tensor, slow: Tensor, contdisc: bool = True, reward: Any = None, **more: Any) -> Any:
    """Return the attributes that the losses read: outputs [T, ...] of critics instead of critics."""
    keys, number = settings(), TwoHot(value.shape[-1], "symexp")
    config = Config(
        total_steps=1,
        gamma=1 - 1 / keys["horizon"],
        lmbda=keys["lmbda"],
        actor=ActorConfig(ent_coef=keys["coef"]),
        critic=CriticConfig(slow_regularizer=keys["slowreg"]),
        world_model=WorldModelConfig(continue_discount=contdisc),
    )
    behavior = SimpleNamespace(
        config=config,
        number=number,
        name="",
        critics=[
            SimpleNamespace(
                network=lambda feat: value[: len(feat)],
                target_network=lambda feat: slow[: len(feat)],
                reward=reward,
                task=True,
                weight=1.0,
                returns="returns",
                advantage="advantage",
            )
        ],
        ranks=SingleProcess(),
        **more,
    )
    for name in ("critic_loss", "recorded_reward"):
        setattr(behavior, name, partial(getattr(BEHAVIOR, name), behavior))
    behavior.measure = lambda *_: {}
    return behavior


def policy_of(outputs: Tensor, kind: str) -> Any:
    keys = settings()
    if kind == "continuous":
        form = ActorConfig(min_std=keys["min_std"], max_std=keys["max_std"]).policy("scaled")
        mean, spread = outputs.chunk(2, -1)
        return scaled_normal(mean, spread, form)
    parts = [unimix(logits, keys["unimix"]) for logits in outputs.split(NVEC, -1)]
    return Categoricals(torch.cat(parts, -1), NVEC)


def check_imagined(kind: str, scale: str) -> None:
    """Check λ-returns, scale of returns, losses of actor and critic, and their gradients."""
    held, expected = given("imagined/"), given(f"expected/{kind}/{scale}/")
    outputs, value = held[f"{kind}/policy"].requires_grad_(), held["value"].requires_grad_()
    number, moments, steps = TwoHot(value.shape[-1], "symexp"), ReturnScale(MomentsConfig()), list[Any]()
    moments.low, moments.high = given("scales/")[scale]
    behavior = make_behavior(
        value,
        held["slow"],
        kind == "discrete",
        world=SimpleNamespace(rssm=None, predict_continue=lambda feat: held["continue"]),
        reward=lambda imagined: number.mean(held["reward"][1:]),
        actor=SimpleNamespace(policy=lambda feat: policy_of(outputs[: len(feat)], kind)),
        scales=[moments],
        actor_optimizer=SimpleNamespace(minimize=steps.append),
    )
    action = held[f"{kind}/action"]
    imagined = Imagined(action.double(), action[:-1], action[:-1])
    nothing = torch.zeros(1, action.shape[1], 1)
    with mock.patch.object(losses, "imagine", lambda *_: imagined):
        (loss,), _, found = BEHAVIOR.imagine_returns(behavior, ModelState(nothing, nothing), Noise(0, "probe"))
    BEHAVIOR.train_actor(behavior, found)
    total, count, _ = BEHAVIOR.policy_loss(behavior, *steps)
    compare("λ-returns", found["returns"], expected["returns"])
    compare("low", moments.low, expected["low"])
    compare("high", moments.high, expected["high"])
    compare_loss("policy", total / count, outputs, expected["policy"], expected["gradient/policy"])
    compare_loss("value", loss.mean(), value, expected["value"], expected["gradient/value"])


def check_replayed() -> None:
    """Check the critic loss on replayed sequences, and its gradient."""
    held, expected = given("replayed/"), given("expected/replayed/")
    value, last = held["value"].requires_grad_(), held["last"]
    is_first = torch.cat([torch.zeros_like(last[:1]), last[:-1]])
    batch = Segment({}, held["reward"], is_first, held["reward"], held["terminated"])
    behavior, feat = make_behavior(value, held["slow"]), held["reward"].unsqueeze(-1)
    loss = BEHAVIOR.replay_loss(behavior, behavior.critics[0], feat, batch, held["bootstrap"])
    compare_loss("replayed", loss.mean(), value, expected["loss"], expected["gradient"])


def compare_loss(name: str, loss: Tensor, outputs: Tensor, expected: Tensor, gradient: Tensor) -> None:
    """Compare a mean loss, and its gradient, which is divided by the number of samples."""
    compare(f"loss {name}", loss, expected)
    found = torch.autograd.grad(loss, outputs)[0]
    compare(f"gradient of {name}", 10 * found, 10 * gradient)


def check_optimizer() -> None:
    """Check the parameters after each step of LaProp with adaptive clipping and warm-up."""
    keys, expected = settings("optimizer/"), given("expected/optimizer/")
    module = nn.ParameterDict({name: nn.Parameter(value) for name, value in given("parameters/").items()})
    gradients = given("gradients/")

    def loss(step: int) -> LossTerms:
        return sum((module[name] * gradients[name][step]).sum() for name in module), torch.ones(()).double(), {}  # pyright: ignore[reportReturnType]

    rule = OptimizerConfig(
        name="laprop",
        lr=keys["lr"],
        betas=(keys["beta1"], keys["beta2"]),
        eps=keys["eps"],
        warmup=int(keys["warmup"]),
        clip_norm="adaptive",
    )
    given_context = context({"name": "ppo", "total_steps": 10}, SPEC, precision="64-true")
    optimizer = Optimizer(module, loss, rule, given_context, max_grad_norm=keys["agc"])
    for step in range(len(expected["matrix"])):
        optimizer.minimize(step)
        for name, value in expected.items():
            compare(f"{name} after step {step + 1}", 100 * module[name], 100 * value[step])


def check_norm() -> None:
    """Check RMSNorm with SiLU, and its gradients."""
    held, expected = given("norm/"), given("expected/norm/")
    norm, x = RMSNorm(held["x"].shape[-1], 1e-4, "silu").double(), held["x"].requires_grad_()
    with torch.no_grad():
        norm.norm.weight.copy_(held["scale"])
    y = norm(x)
    compare("output", y, expected["y"])
    of_x, of_scale = torch.autograd.grad((held["slope"] * y).sum(), [x, norm.norm.weight])
    compare("gradient of x", of_x, expected["gradient/x"])
    compare("gradient of scale", of_scale, expected["gradient/scale"])


IMAGINED = [("discrete", "wide"), ("discrete", "narrow"), ("continuous", "wide")]
CHECKS = {
    "replayed": check_replayed,
    "optimizer": check_optimizer,
    "norm": check_norm,
} | {f"{kind}-{scale}": partial(check_imagined, kind, scale) for kind, scale in IMAGINED}
DISCRETE, CONTINUOUS = CHECKS["discrete-wide"], CHECKS["continuous-wide"]
OF_REPLAYED = (
    "last step in the replay loss",
    "replay loss bootstraps from the wrong start",
    "replay returns pass the ends of episodes",
    "replay loss at the ends of episodes",
    "ends that do not terminate lose their value",
    "mean of the replay loss over all rows",
)
OF_DISCRETE = (
    "weights one step off",
    "no baseline",
    "advantages without scale",
    "critic without weights",
    "regularizer without its weight",
    "bins of symlog",
)
OWN = {
    "discount twice": Mutant(
        "behavior.Behavior.imagine_returns", swap("config.imagined_gamma * A", "config.gamma * A"), DISCRETE
    ),
    "γ left in the first weight": Mutant(
        "behavior.Behavior.imagine_returns", swap("A / config.imagined_gamma", "A"), CONTINUOUS
    ),
    "scale without limit": Mutant("ReturnScale.forward", swap("A.clamp(min=B)", "A"), CHECKS["discrete-narrow"]),
    "AGC per matrix row": Mutant(
        "adaptive_clip_factors",
        swap(
            "part.norm() / (clip * weight.norm().clamp(min=MIN_NORM))",
            "part.norm(dim=-1, keepdim=True) / (clip * weight.norm(dim=-1, keepdim=True).clamp(min=MIN_NORM))",
        ),
        check_optimizer,
    ),
    "AGC without smallest norm": Mutant("adaptive_clip_factors", swap("A.clamp(min=MIN_NORM)", "A"), check_optimizer),
    "warm-up off by one": Mutant("rules.warm_up", swap("count - 1", "count"), check_optimizer),
    "momentum without division": Mutant("_laprop", swap("ratio - A", "gradient - A"), check_optimizer),
    "second moment without correction": Mutant("_laprop", swap("A.sqrt() / scale", "A.sqrt()"), check_optimizer),
    "norm without activation": Mutant("layers.RMSNorm.forward", swap("self.act(A)", "A"), check_norm),
}


@pytest.mark.parametrize("check", CHECKS)
def test_v3_5_formulas_match_author(check: str) -> None:
    CHECKS[check]()


@pytest.mark.parametrize("name", OF_REPLAYED)
def test_author_check_detects_replay_mutant(name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises(AssertionError):
        check_replayed()


@pytest.mark.parametrize("name", OF_DISCRETE)
def test_author_check_detects_imagination_mutant(name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises(AssertionError):
        DISCRETE()


@pytest.mark.parametrize("name", OWN)
def test_author_check_detects_mutant(name: str) -> None:
    with OWN[name].applied(), pytest.raises(AssertionError):
        OWN[name].check()
