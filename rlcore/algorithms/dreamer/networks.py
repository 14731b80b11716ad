"""Factories of the networks of a world model, for subclasses of a Dreamer's agent with other networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from rlcore.algorithms.dreamer.dense import Dense, Norm, cell
from rlcore.algorithms.dreamer.stages import ImageDecoder, ImageEncoder
from rlcore.algorithms.dreamer.world_keys import MLPSpec


class Networks(NamedTuple):
    """Functions or classes that create the networks of a world model; the defaults are those of the papers.

    Attributes:
        cell: recurrent cell of the RSSM, (inputs F, size H, form, rng) -> module (x [..., F], h [..., H]) -> [..., H];
            see `dense.cell`.
        norm: normalization and activation after each hidden linear layer, (size, eps, act) -> module
            [..., size] -> [..., size]; see `dense.Norm`.
        image_encoder: CNN with the arguments, attributes and outputs of `stages.ImageEncoder`.
        image_decoder: CNN with the arguments and outputs of `stages.ImageDecoder`.
    """

    cell: Callable[..., nn.Module] = cell
    norm: Callable[..., nn.Module] = Norm
    image_encoder: Callable[..., ImageEncoder] = ImageEncoder
    image_decoder: Callable[..., nn.Module] = ImageDecoder

    def dense(
        self,
        inputs: int,
        hidden: MLPSpec,
        rng: torch.Generator,
        outputs: int | None = None,
        scale: float | None = 1.0,
    ) -> Dense:
        """Create a `Dense` with these arguments and with the normalization `norm`."""
        return Dense(inputs, hidden, rng, outputs, scale, self.norm)


DEFAULT = Networks()
