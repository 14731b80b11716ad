"""Update rules of optimizers as pure functions of vectors: (parameters, gradient, state) -> (parameters, state).

The function of a rule is either compiled together with the loss, or executed eagerly. In eager mode, it is applied to
one block of the vectors after the other, and the results are written to the vectors in place.

    adam        Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; AMSGrad: Reddi, Kale and Kumar 2018, arXiv:1904.09237
    adamw       Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2
    laprop      Ziyin, Wang and Ueda 2020, arXiv:2002.04839, algorithm 1, with the weight decay of adamw
    rmsprop     Tieleman and Hinton 2012, lecture 6e; centered: Graves 2013, arXiv:1308.0850, eq. 38-45; as in PyTorch
    rmsprop_tf  as in TensorFlow 1: ε is inside the root, the average of g² is initialized to 1, and the momentum
                accumulates steps that are already multiplied by the learning rate
    sgd         with momentum: Sutskever et al. 2013, as in PyTorch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import SETTINGS, OptimizerConfig
from rlcore.optim.own_optimizer import OwnRule

Slots = dict[str, Tensor]  # optimizer state: name -> vector [P]
BLOCK = 2**16  # bytes of a vector that are updated at a time; they fit in the cache, and malloc reuses the memory


@dataclass(frozen=True)
class Rule:
    """Update rule of an optimizer.

    Attributes:
        slots: function that returns the names of the slots for given settings. Slots are the tensors of the optimizer
            state, for example the two moments of Adam.
        update: function (settings, θ, g, slots, t, α) -> θ and slots after the step, as new tensors. It must be
            elementwise. θ are the parameters, g is the gradient, t the number of the step, α the learning rate.
        start: slot name -> initial value; slots that are not listed start at 0.
        decoupled: how weight decay λ is applied. True: θ ← (1 - αλ) θ. False: λθ is added to the gradient.
        fused: optional function (settings, θ, g, slots, t, α) that performs the update, including weight decay, in
            place by a single PyTorch kernel. Its results may differ from those of `update` in the last bits.
    """

    slots: Callable[[OptimizerConfig], Sequence[str]]
    update: Callable[[OptimizerConfig, Tensor, Tensor, Slots, Tensor, Tensor], tuple[Tensor, Slots]]
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    decoupled: bool = False
    fused: Callable[[OptimizerConfig, Tensor, Tensor, Slots, Tensor, Tensor], None] | None = None


def register(name: str, rule: Rule, settings: Mapping[str, Any]) -> None:
    """Register an update rule, so that a config can select it. A plugin calls this function when it is imported.

    Args:
        name: value of `optimizer.name` that selects the rule.
        rule: the update rule.
        settings: key of `OptimizerConfig` -> default value, for all keys that the rule uses. The default is used if the
            key is null in the config.

    Raises:
        UserError: If another rule has this name.
    """
    if RULES.get(name, rule) is not rule:
        raise UserError(f"optimizer {name!r}: another update rule has this name; choose a different name")
    RULES[name], SETTINGS[name] = rule, dict(settings)


def check_class(config: OptimizerConfig) -> None:
    """Raise UserError if `name` is an optimizer class that cannot be used (`rlcore.optim.own_optimizer`)."""
    RULES[config.name].slots(config)


def slots(config: OptimizerConfig, vector: Tensor) -> Slots:
    """Return the initial optimizer state, name -> [P], for a vector of parameters [P]."""
    rule = RULES[config.name]
    return {name: torch.full_like(vector, rule.start.get(name, 0.0)) for name in rule.slots(config)}


def update(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    """Compute parameters and optimizer state after one step.

    Args:
        config: update rule and its settings.
        vector: parameters θ, [P].
        gradient: gradient g of the minimized loss, [P].
        state: optimizer state before the step.
        count: t, [] float64; number of this step, from 1.
        lr: α, [] float64; learning rate, to which the warm-up of the config is still to be applied.

    Returns:
        Parameters θ [P] and optimizer state (name -> [P]) after the step, as new tensors.
    """
    rule, lr = RULES[config.name], warm_up(config, count, lr)
    if rule.decoupled:
        vector = vector * (1 - lr * config.weight_decay).to(vector.dtype)
    elif config.weight_decay:
        gradient = gradient + config.weight_decay * vector
    return rule.update(config, vector, gradient, state, count, lr)


def update_in_place(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> None:
    """Take one optimizer step that changes `vector` and `state` in place; arguments are those of `update`.

    No further vectors of this size are allocated.
    """
    rule = RULES[config.name]
    if rule.fused is not None:
        rule.fused(config, vector, gradient, state, count, warm_up(config, count, lr))
        return
    numbers = BLOCK // vector.element_size() if vector.device.type == "cpu" else vector.numel()
    blocks = (part.split(numbers) for part in (vector, gradient, *state.values()))
    for mine, slope, *held in zip(*blocks, strict=True):
        after, remembered = update(config, mine, slope, dict(zip(state, held, strict=True)), count, lr)
        mine.copy_(after)
        for name, part in zip(state, held, strict=True):
            part.copy_(remembered[name])


def warm_up(config: OptimizerConfig, count: Tensor, lr: Tensor) -> Tensor:
    """Return the learning rate with linear warm-up: α min(1, (t - 1) / n), [] float64.

    n is `config.warmup`, the number of warm-up steps (0 = none); t = 1, 2, … is `count`, the number of the step; α is
    `lr`. The learning rate of the first step is therefore 0, as in Dreamer V3's code of 2024.
    """
    return lr * ((count - 1) / config.warmup).clamp(max=1.0) if config.warmup else lr


def _adam_slots(config: OptimizerConfig) -> Sequence[str]:
    return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if config["amsgrad"] else [])]


def _adam(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    beta1, beta2 = config["betas"]
    first = state["exp_avg"] + (1 - beta1) * (gradient - state["exp_avg"])
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient.square()
    after = {"exp_avg": first, "exp_avg_sq": second}
    if config["amsgrad"]:
        after["max_exp_avg_sq"] = second = torch.maximum(state["max_exp_avg_sq"], second)
    # Bias corrections in float64: in float32, 1 - β₂ᵗ loses four digits at the first step.
    size = (lr / (1 - beta1**count)).to(vector.dtype)
    scale = (1 - beta2**count).sqrt().to(vector.dtype)
    return vector - size * first / (second.sqrt() / scale + config["eps"]), after


def _fused_adam(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> None:
    # This is the kernel that torch.optim calls. Importing torch.optim would import torch's compiler (1.5 s per start).
    step = torch._fused_adamw_ if RULES[config.name].decoupled else torch._fused_adam_  # pyright: ignore[reportPrivateUsage]
    beta1, beta2 = config["betas"]
    step(
        [vector],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [state["max_exp_avg_sq"]] if config["amsgrad"] else [],
        [count.to(vector.device, torch.float32)],
        lr=lr.float() if lr.is_cuda else lr,  # the CUDA kernel expects float32
        beta1=beta1,
        beta2=beta2,
        weight_decay=config.weight_decay,
        eps=config["eps"],
        amsgrad=config["amsgrad"],
        maximize=False,
    )


def _laprop(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    # n ← ν n + (1 - ν) g²    m ← μ m + (1 - μ) g / (√(n / cₙ) + ε)    θ ← θ - α m / cₘ    cₙ = 1 - νᵗ, cₘ = 1 - μᵗ
    mu, nu = config["betas"]
    second = nu * state["exp_avg_sq"] + (1 - nu) * gradient.square()
    scale = (1 - nu**count).sqrt().to(vector.dtype)
    ratio = gradient / (second.sqrt() / scale + config["eps"])
    first = state["exp_avg"] + (1 - mu) * (ratio - state["exp_avg"])
    return vector - (lr / (1 - mu**count)).to(vector.dtype) * first, {"exp_avg": first, "exp_avg_sq": second}


def _rmsprop_slots(config: OptimizerConfig) -> Sequence[str]:
    return ["square_avg", *(name for name, key in RMSPROP_SLOTS if config[key])]


def _rmsprop(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    tensorflow, alpha, eps, rate = config.name == "rmsprop_tf", config["alpha"], config["eps"], lr.to(vector.dtype)
    after = {"square_avg": state["square_avg"] + (1 - alpha) * (gradient.square() - state["square_avg"])}
    variance = after["square_avg"]
    if config["centered"]:
        after["grad_avg"] = state["grad_avg"] + (1 - alpha) * (gradient - state["grad_avg"])
        variance = variance - after["grad_avg"].square()
    step = gradient / ((variance + eps).sqrt() if tensorflow else variance.sqrt() + eps)
    if not config["momentum"]:
        return vector - rate * step, after
    after["momentum"] = config["momentum"] * state["momentum"] + (rate * step if tensorflow else step)
    return vector - (after["momentum"] if tensorflow else rate * after["momentum"]), after


def _sgd(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    rate, momentum = lr.to(vector.dtype), config["momentum"]
    if not momentum:
        return vector - rate * gradient, state
    damped = (count > 1).to(vector.dtype) * config["dampening"]  # no dampening at the first step
    velocity = momentum * state["momentum"] + (1 - damped) * gradient
    step = gradient + momentum * velocity if config["nesterov"] else velocity
    return vector - rate * step, {"momentum": velocity}


RMSPROP_SLOTS = (("grad_avg", "centered"), ("momentum", "momentum"))  # name of a slot, setting that requires it


class _Rules(dict[str, Rule]):
    """Update rules by name; the rule of a class, `package.module:Class`, is created at its first use."""

    def __missing__(self, name: str) -> Rule:
        own = OwnRule(name)
        self[name] = Rule(own.slots, own.update)
        return self[name]


RULES: dict[str, Rule] = _Rules(
    {
        "adam": Rule(_adam_slots, _adam, fused=_fused_adam),
        "adamw": Rule(_adam_slots, _adam, decoupled=True, fused=_fused_adam),
        "laprop": Rule(lambda config: ["exp_avg", "exp_avg_sq"], _laprop, decoupled=True),
        "rmsprop": Rule(_rmsprop_slots, _rmsprop),
        "rmsprop_tf": Rule(_rmsprop_slots, _rmsprop, start={"square_avg": 1.0}),
        "sgd": Rule(lambda config: ["momentum"] if config["momentum"] else [], _sgd),
    }
)
