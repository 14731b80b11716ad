"""Gradient of a step: summed over its minibatches in one vector that autograd writes into, divided, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.optim.flat import LINE, FlatParameters

if TYPE_CHECKING:
    from rlcore.types import Ranks


class Gradient:
    """The gradient of minibatches [P] and their samples' weight, both summed; made when the first one is added.

    Args:
        parameters: by which losses are differentiated.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.weight: Tensor | None = None  # None: of no minibatch yet
        self._vector: Tensor | None = None  # [P], and behind it a line in which ranks exchange the weight

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Add the gradient of a loss [] over samples of a weight []."""
        self._begin(weight)
        tensors = self.parameters.tensors
        for tensor, view in zip(tensors, self._views, strict=True):
            tensor.grad = view
        try:
            torch.autograd.backward(total, inputs=tensors)  # adds to what `grad` holds
        finally:
            for tensor in tensors:
                tensor.grad = None

    def add(self, vector: Tensor, weight: Tensor) -> None:
        """Add a gradient [P] over samples of a weight []."""
        self._begin(weight)
        self.vector.add_(vector)

    @property
    def vector(self) -> Tensor:
        """The sum [P] itself, to be written into."""
        assert self._vector is not None, "no minibatch yet"
        return self._vector[:-LINE]

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Make gradient and weight those of all ranks together."""
        if ranks.size > 1:
            assert self._vector is not None and self.weight is not None
            self._vector[-1] = self.weight
            self._vector.copy_(ranks.sum(self._vector))
            self.weight = self._vector[-1].clone()

    def clear(self) -> None:
        """Forget all of it."""
        self.weight = None

    def _begin(self, weight: Tensor) -> None:
        before = self.weight
        if self._vector is None:
            like = self.parameters.vector
            self._vector = like.new_zeros(len(like) + LINE)
            self._views = list(self.parameters.split(self.vector).values())
        elif before is None:
            self._vector.zero_()
        self.weight = weight if before is None else before + weight


def clip_factors(parts: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Factors [] by which each part's norm becomes `max_norm` at most; ε as in torch's `clip_grad_norm_`."""
    return [(max_norm / (part.norm() + 1e-6)).clamp(max=1.0) for part in parts]
