"""From an observation dict to one feature vector: flatten, normalise, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.stats import RunningMoments, Sum
from rlcore.nn.config import EncoderConfig
from rlcore.nn.mlp import MLP
from rlcore.spec import ArraySpec, EnvSpec


def flatten(obs: Mapping[str, Tensor], spec: EnvSpec, keys: Sequence[str], lead: int) -> Tensor:
    """Concatenate observation keys, in their order: key -> [*lead dims, *shape] -> [*lead dims, F] float32.

    `lead` leading dimensions are kept; Discrete keys become one-hot.
    """
    parts = [_flat(obs[key], spec.obs[key], lead) for key in keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _flat(x: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    if spec.n is not None:
        choices = torch.arange(spec.start, spec.start + spec.n, device=x.device)
        return (x.long().unsqueeze(-1) == choices).float()  # one_hot looks at the values, which no graph can
    return x.reshape(*x.shape[:lead], -1).float()


class Normalizer(nn.Module):
    """Observations [..., F] brought to mean 0 and variance 1 by the statistics of training, then clipped to ±`clip`.

    The statistics change only when the learner says so (once an update), so that a rollout and the losses on it see
    the same numbers and the first ratio is exactly 1. They are kept in float64 whatever the precision of the networks.
    """

    def __init__(self, size: int, clip: float) -> None:
        super().__init__()
        self.moments = RunningMoments(size)
        self.clip = clip
        # What `forward` reads, float32: buffers, for a compiled function takes them as inputs.
        self.register_buffer("mean", torch.zeros(size), persistent=False)
        self.register_buffer("scale", torch.ones(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., F] float32."""
        return ((x - self.mean) / self.scale).clamp(-self.clip, self.clip)

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Merge raw rows [N, F], those of all ranks that `total` sums over."""
        self.moments.update(rows, total)
        self._read()

    def get_extra_state(self) -> dict[str, Tensor | float]:
        """The statistics; part of `state_dict`."""
        return self.moments.state_dict()

    def set_extra_state(self, state: dict[str, Tensor | float]) -> None:
        """Continue from `get_extra_state`."""
        self.moments.load_state_dict(state)
        self._read()

    def _read(self) -> None:
        device = self.mean.device
        self.mean, self.scale = (x.float().to(device) for x in (self.moments.mean, self.moments.scale()))

    def _apply(self, fn: Any, recurse: bool = True) -> Normalizer:
        """Moved to another device or precision, what is read stays float32: bfloat16 would round the statistics."""
        super()._apply(fn, recurse)
        self._read()
        return self


class VectorEncoder(nn.Module):
    """Perceptron over the flat observation [..., F]; the identity when it has no layer."""

    def __init__(self, inputs: int, config: EncoderConfig, rng: torch.Generator) -> None:
        super().__init__()
        outputs = config.mlp_features_dim if config.mlp_layers else None
        self.mlp = MLP(inputs, config, rng, outputs, gain=1.0, output_gain=1.0)
        self.output_size = self.mlp.output_size

    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., output_size]."""
        return self.mlp(x)
