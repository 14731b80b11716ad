"""Factories of the networks of a world model, for subclasses of a Dreamer's agent with other networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from rlcore.algorithms.dreamer.dense import Dense, Norm, cell
from rlcore.algorithms.dreamer.stages import ImageDecoder, ImageEncoder


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
    image_encoder: Callable[..., Any] = ImageEncoder
    image_decoder: Callable[..., nn.Module] = ImageDecoder

    def dense(self, *inputs: Any) -> Dense:
        """Create a `Dense` with these arguments and with the normalization `norm`."""
        return Dense(*inputs, norm=self.norm)


DEFAULT = Networks()
