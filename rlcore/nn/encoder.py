"""From an observation dict to one feature vector: flatten, normalise, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.config.groups import NO_IMAGES
from rlcore.config.schema import arg, nearest
from rlcore.errors import UserError
from rlcore.functional.stats import RunningMoments, Sum
from rlcore.nn.mlp import MLP, MLPConfig
from rlcore.spec import ArraySpec, EnvSpec


@dataclass(frozen=True)
class KeysConfig:
    """Which observation keys a part of the agent sees."""

    encoder: tuple[str, ...] = arg((), "observation keys; a non-Dict observation is key `state`")


@dataclass(frozen=True)
class EncoderConfig(MLPConfig):
    """Vector keys, concatenated, through one perceptron."""

    mlp_features_dim: int | None = arg(64, "features of a last linear layer; null = no such layer", low=1)
    cnn_features_dim: int = arg(512, "features of image keys", low=1, unused=NO_IMAGES)


def check_keys(spec: EnvSpec, keys: Sequence[str], image_keys: Sequence[str]) -> None:
    """Refuse `algo.mlp_keys.encoder` and `algo.cnn_keys.encoder` where the environment or the encoder lacks a key."""
    if image_keys:
        raise UserError(f"algo.cnn_keys.encoder={list(image_keys)}: image keys are not there yet; set it to []")
    known = ", ".join(spec.obs)
    if not keys:
        raise UserError(f"algo.mlp_keys.encoder=[]: name at least one observation key of {spec.id}: {known}")
    for key in keys:
        if key not in spec.obs:
            raise UserError(
                f"algo.mlp_keys.encoder: {spec.id} has no key {key!r}{nearest(key, spec.obs)}; "
                f"all it gives: algo.mlp_keys.encoder=[{','.join(spec.obs)}]"
            )
        array = spec.obs[key]
        if array.dtype == "uint8" and len(array.shape) == 3:
            vectors = [k for k, other in spec.obs.items() if other.dtype != "uint8" or len(other.shape) != 3]
            raise UserError(
                f"algo.mlp_keys.encoder: key {key!r} of {spec.id} is an image (uint8, {list(array.shape)}), which a "
                "perceptron would see as raw 0 to 255, and image encoders are not there yet; "
                + (f"its other keys: algo.mlp_keys.encoder=[{','.join(vectors)}]" if vectors else "it has no other key")
            )


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
