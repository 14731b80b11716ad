"""Optimizers as pure functions of vectors: parameters, gradient and state in, parameters and state out.

One form for every way to run it: called as it stands, compiled together with the loss, after a sum over ranks.

    adam        Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; AMSGrad: Reddi, Kale and Kumar 2018, arXiv:1904.09237
    adamw       Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2
    rmsprop     Tieleman and Hinton 2012, lecture 6e; centred: Graves 2013, arXiv:1308.0850, eq. 38-45; as torch has it
    rmsprop_tf  as TensorFlow 1 had it: ε inside the root, an average that begins at 1, the rate in the momentum
    sgd         with momentum: Sutskever et al. 2013, as torch has it
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlcore.optim.config import OptimizerConfig

Slots = dict[str, Tensor]  # what a rule remembers: name -> vector [P]


def slots(config: OptimizerConfig, vector: Tensor) -> Slots:
    """Slots of a rule before its first step, for parameters `vector` [P]."""
    zeros, name = torch.zeros_like(vector), config.name
    if name in ("adam", "adamw"):
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if config["amsgrad"] else [])]
    elif name == "sgd":
        names = ["momentum"] if config["momentum"] else []
    else:
        names = ["square_avg", *(["grad_avg"] if config["centered"] else [])]
        names += ["momentum"] if config["momentum"] else []
    made = {slot: zeros.clone() for slot in names}
    return made | {"square_avg": torch.ones_like(vector)} if name == "rmsprop_tf" else made


def update(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    """Parameters [P] and what the rule remembers after one step.

    Args:
        config: the rule and its settings.
        vector: θ, [P].
        gradient: g, [P], of what is minimised.
        state: as `slots` made it and the last step left it.
        count: t, [] float64, this step's number, from 1.
        lr: α, [] float64.

    Returns:
        θ and the state after the step.
    """
    if config.name == "adamw":
        vector = vector * (1 - lr * config.weight_decay).to(vector.dtype)
    elif config.weight_decay:
        gradient = gradient + config.weight_decay * vector
    return RULES[config.name](config, vector, gradient, state, count, lr)


def _adam(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
) -> tuple[Tensor, Slots]:
    beta1, beta2 = config["betas"]
    first = state["exp_avg"] + (1 - beta1) * (gradient - state["exp_avg"])
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient.square()
    after = {"exp_avg": first, "exp_avg_sq": second}
    if config["amsgrad"]:
        after["max_exp_avg_sq"] = second = torch.maximum(state["max_exp_avg_sq"], second)
    # The corrections in float64: in float32, 1 - β₂ᵗ has lost four digits at the first step.
    size = (lr / (1 - beta1**count)).to(vector.dtype)
    scale = (1 - beta2**count).sqrt().to(vector.dtype)
    return vector - size * first / (second.sqrt() / scale + config["eps"]), after


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
    damped = (count > 1).to(vector.dtype) * config["dampening"]  # not at the first step
    velocity = momentum * state["momentum"] + (1 - damped) * gradient
    step = gradient + momentum * velocity if config["nesterov"] else velocity
    return vector - rate * step, {"momentum": velocity}


RULES: dict[str, Callable[..., tuple[Tensor, Slots]]] = {
    "adam": _adam,
    "adamw": _adam,
    "rmsprop": _rmsprop,
    "rmsprop_tf": _rmsprop,
    "sgd": _sgd,
}
