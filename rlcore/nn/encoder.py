"""From an observation dict to one feature vector: flatten, normalise, encode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.stats import RunningMoments, Sum
from rlcore.nn.cnn import NatureCNN
from rlcore.nn.config import EncoderConfig
from rlcore.nn.mlp import MLP
from rlcore.protocols import Ranks
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
        x = (x.long().unsqueeze(-1) == choices).float()  # one_hot looks at the values, which no graph can
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


class MultiEncoder(nn.Module):
    """Observations to features: vector keys through one perceptron, image keys through one network of convolutions.

    It takes observations as environments give them; all that is computed of them, it computes.

    Args:
        spec: of the environment.
        vectors: the keys that are laid flat, one behind the other, in their order; () = none.
        images: the image keys, likewise.
        config: layers and features.
        rng: CPU generator for the initialisation.
        clip: vectors are normalised by their running mean and std, and clipped here; None = they are not.
    """

    # size: numbers of the flat vector; output_size: F

    def __init__(
        self,
        spec: EnvSpec,
        vectors: Sequence[str],
        images: Sequence[str],
        config: EncoderConfig,
        rng: torch.Generator,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.vectors, self.images = spec, tuple(vectors), tuple(images)
        self.size = sum(shown_size(spec.obs[key]) for key in vectors)
        self.normalizer = Normalizer(self.size, clip) if vectors and clip is not None else None
        outputs = config.mlp_features_dim if config.mlp_layers else None
        self.mlp = MLP(self.size, config, rng, outputs, gain=1.0, output_gain=1.0) if vectors else None
        gain = math.sqrt(2) if config.ortho_init else None
        specs = [spec.obs[key] for key in images]
        self.cnn = NatureCNN(specs, config.cnn_features_dim, rng, gain) if images else None
        self.output_size = sum(part.output_size for part in (self.mlp, self.cnn) if part is not None)

    def forward(self, obs: Mapping[str, Tensor], lead: int = 1) -> Tensor:
        """Key -> [*lead dims, *shape], or [*lead dims, frames, *shape] with a window -> [*lead dims, F] float32.

        `lead` leading dimensions are kept. A perceptron without layers hands the flat vector on.
        """
        parts: list[Tensor] = []
        if self.mlp is not None:
            vector = flatten(obs, self.spec, self.vectors, lead)
            parts.append(self.mlp(vector if self.normalizer is None else self.normalizer(vector)))
        if self.cnn is not None:
            parts.append(self.cnn([obs[key] for key in self.images], lead))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def observe(self, obs: Mapping[str, Tensor], ranks: Ranks, lead: int = 2) -> None:
        """Let the vectors of these rows count in the normaliser, and those of the other ranks."""
        if self.normalizer is not None:
            rows = flatten(obs, self.spec, self.vectors, lead)
            self.normalizer.update(rows.flatten(0, -2), ranks.sum)


def shown_size(spec: ArraySpec) -> int:
    """Numbers of all frames that an agent is shown of a key."""
    return spec.size * (spec.window.frames if spec.window else 1)
