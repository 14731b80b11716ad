"""Clipping rules: functions that compute the factors by which an optimizer multiplies the parts of a gradient.

global      limits the norm of the gradient of all parameters, as `torch.nn.utils.clip_grad_norm_` does
tensor      limits the norm of the gradient of each parameter tensor
adaptive    limits this norm divided by the norm of the tensor: Brock et al. 2021, arXiv:2102.06171, eq. 3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import CLIP_NORMS

MIN_NORM = 1e-3  # smallest parameter norm in adaptive gradient clipping


@dataclass(frozen=True)
class ClippingRule:
    """Clipping rule of an optimizer.

    Attributes:
        factors: function (gradients, parameters, limit) that returns one factor for each gradient. `gradients` are the
            gradients of the parameter tensors, `parameters` the tensors in the same order, and `limit` is the maximum
            gradient norm of the config. Each gradient is multiplied by its factor, a tensor that broadcasts to the
            shape of the gradient. The function must not branch on the values of tensors.
        whole: True: both lists have only one element, the vector [P] of the gradient or of the parameters. It also
            contains zeros between the tensors.
    """

    factors: Callable[[Sequence[Tensor], Sequence[Tensor], float], Sequence[Tensor]]
    whole: bool = False


def register(name: str, rule: ClippingRule) -> None:
    """Register a clipping rule, so that a config can select it. A plugin calls this function when it is imported.

    Args:
        name: value of `optimizer.clip_norm` that selects the rule.
        rule: the clipping rule.

    Raises:
        UserError: If another rule has this name.
    """
    if CLIPPING.get(name, rule) is not rule:
        raise UserError(f"clip_norm {name!r}: another clipping rule has this name; choose a different name")
    CLIPPING[name] = rule
    if name not in CLIP_NORMS:
        CLIP_NORMS.append(name)


def clip_factors(gradients: Sequence[Tensor], parameters: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Return the clipping factor of each gradient, a scalar tensor. Clipping multiplies the gradient by it.

    The factor is min(1, max_norm / (norm + 1e-6)). After the multiplication, the norm of the gradient is at most
    `max_norm`. `torch.nn.utils.clip_grad_norm_` also adds 1e-6. `parameters` is not used.
    """
    return [(max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0) for gradient in gradients]


def adaptive_clip_factors(gradients: Sequence[Tensor], parameters: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Return the factor of each gradient, a scalar tensor. Adaptive clipping multiplies the gradient by it.

    After the multiplication, the norm of a gradient G is at most clip · max(1e-3, ‖W‖), with the norm of its parameters
    W (Brock et al. 2021, arXiv:2102.06171, eq. 3). As in Dreamer V3's code of 2024, W is a whole tensor; in the paper,
    W is one row of it.

    Args:
        gradients: gradients of the parameter tensors.
        parameters: parameter tensors before the optimizer step, in the same order.
        clip: factor; 0.3 in Dreamer V3's code of 2024.

    Returns:
        Factors in (0, 1].
    """
    pairs = zip(gradients, parameters, strict=True)
    return [1 / (part.norm() / (clip * weight.norm().clamp(min=MIN_NORM))).clamp(min=1.0) for part, weight in pairs]


CLIPPING = {
    "global": ClippingRule(clip_factors, whole=True),
    "tensor": ClippingRule(clip_factors),
    "adaptive": ClippingRule(adaptive_clip_factors),
}
