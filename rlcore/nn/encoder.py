"""Encoding of an observation dict to one feature vector: flattening, normalization, networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.stats import RunningMoments, Sum
from rlcore.nn.cnn import NatureCNN
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import EncoderConfig
from rlcore.spec import ACTION, ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.types import Ranks


def flatten(obs: Mapping[str, Tensor], spec: EnvSpec, keys: Sequence[str], lead: int) -> Tensor:
    """Concatenate the observations of some keys, in the given order, to one float32 vector each.

    Maps key -> [*lead dims, *shape] to [*lead dims, F]; `lead` is the number of leading dimensions. Discrete
    observations become one-hot vectors.
    """
    parts = [_flat(obs[key], spec.obs[key], lead) for key in keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _flat(x: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    if spec.n is not None:
        x = _one_hot(x, spec.start, spec.n)
    return x.reshape(*x.shape[:lead], -1).float()


def _one_hot(x: Tensor, start: int, n: int) -> Tensor:
    choices = torch.arange(start, start + n, device=x.device)
    return (x.long().unsqueeze(-1) == choices).float()  # F.one_hot reads the values, so it cannot be traced


def flatten_actions(action: Tensor, spec: ActionSpec, lead: int) -> Tensor:
    """Flatten an agent's actions [*lead dims, (frames,) A] to [*lead dims, F] float32.

    `lead` is the number of leading dimensions. Discrete actions become one-hot vectors.
    """
    if not spec.continuous:
        action = torch.cat([_one_hot(action[..., i], 0, n) for i, n in enumerate(spec.nvec)], -1)
    return action.reshape(*action.shape[:lead], -1).float()


class Normalizer(nn.Module):
    """Normalization of observations [..., F] by their running mean and variance, with clipping to ±`clip`.

    The statistics change only in `update`, which the learner calls once per update. Collection and losses therefore
    use the same statistics, and the first probability ratio is exactly 1. The statistics are float64 for networks of
    any precision.

    Args:
        size: R; size of the observation vector of one time step, without frame stacks.
        clip: maximum absolute value of the output.
        frames: (size of a frame, number of frames) of each key in the observation vector, in order. `forward` takes all
            frames of each key, and normalizes each frame by the statistics of single time steps. () = no frame stacks,
            so F = R.
    """

    def __init__(self, size: int, clip: float, frames: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.moments = RunningMoments(size)
        self.clip, self.size, self.frames = clip, size, tuple(frames)
        # Float32 copies for `forward`. They are buffers, so that they become inputs of a compiled function.
        self.register_buffer("mean", self._of_frames(torch.zeros(size)), persistent=False)
        self.register_buffer("scale", self._of_frames(torch.ones(size)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [..., F]; the result is float32."""
        return ((x - self.mean) / self.scale).clamp(-self.clip, self.clip)

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Update the statistics with the observations [N, R] of N time steps, without frame stacks.

        If `total` sums over ranks, the observations of the other ranks are included.
        """
        assert rows.shape[-1] == self.size, (rows.shape, self.size)
        self.moments.update(rows, total)
        self._read()

    def get_extra_state(self) -> dict[str, Tensor | float]:
        """Return the statistics, which are part of `state_dict`."""
        return self.moments.state_dict()

    def set_extra_state(self, state: dict[str, Tensor | float]) -> None:
        """Continue from `get_extra_state`."""
        self.moments.load_state_dict(state)
        self._read()

    def _read(self) -> None:
        device = self.mean.device
        read = (self.moments.mean, self.moments.scale())
        self.mean, self.scale = (self._of_frames(x).float().to(device) for x in read)

    def _of_frames(self, row: Tensor) -> Tensor:
        """Repeat the statistics of each key for each of its frames: [R] -> [F]."""
        if not self.frames:
            return row
        parts = row.split([size for size, _ in self.frames])
        return torch.cat([part.repeat(count) for part, (_, count) in zip(parts, self.frames, strict=True)])

    def _apply(self, fn: Any, recurse: bool = True) -> Normalizer:
        """Keep the buffers float32 when the module is converted: bfloat16 would round the statistics."""
        super()._apply(fn, recurse)
        self._read()
        return self


class MultiEncoder(nn.Module):
    """Encoder of raw observations: an MLP for vector keys, a CNN for image keys.

    If the history includes past actions, they are concatenated to the vectors. Discrete actions are one-hot vectors,
    continuous actions are unchanged; neither is normalized.

    Args:
        spec: spec of the environment.
        vectors: vector keys, flattened frame by frame and concatenated in this order; () = none.
        images: image keys, concatenated along channels in this order; () = none.
        config: layers and features.
        rng: CPU generator for the initialization.
        clip: normalize vectors by their running mean and std, and clip them to ±`clip`; None = no normalization.
        history: windows of the agent's keys; None = the windows of `spec`.
    """

    # size: size of the flat vector with all frames and past actions; output_size: F, number of output features

    def __init__(
        self,
        spec: EnvSpec,
        vectors: Sequence[str],
        images: Sequence[str],
        config: EncoderConfig,
        rng: torch.Generator,
        clip: float | None = None,
        history: Mapping[str, Window] | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.vectors, self.images = spec, tuple(vectors), tuple(images)
        history = spec.windows((*vectors, *images)) if history is None else history
        frames = [(spec.obs[key].size, history[key].frames if key in history else 1) for key in vectors]
        self.reads_actions = ACTION in history
        self.size = sum(size * count for size, count in frames)
        self.size += spec.action.flat_size * history[ACTION].frames if self.reads_actions else 0
        row = sum(size for size, _ in frames)
        self.normalizer = Normalizer(row, clip, frames) if vectors and clip is not None else None
        outputs = config.mlp_features_dim if config.mlp_layers else None
        self.mlp = MLP(self.size, config, rng, outputs, gain=1.0, output_gain=1.0) if self.size else None
        gain = math.sqrt(2) if config.ortho_init else None
        specs = [replace(spec.obs[key], window=history.get(key)) for key in images]
        self.cnn = NatureCNN(specs, config.cnn_features_dim, rng, gain) if images else None
        self.output_size = sum(part.output_size for part in (self.mlp, self.cnn) if part is not None)

    def forward(self, obs: Mapping[str, Tensor], lead: int = 1) -> Tensor:
        """Encode observations to features [*lead dims, F] float32.

        `obs` maps keys to [*lead dims, *shape]; keys with a window of frames have shape [*lead dims, frames, *shape].
        `lead` is the number of leading dimensions. An MLP without layers returns the flat vector.
        """
        parts: list[Tensor] = []
        if self.mlp is not None:
            parts.append(self.mlp(self._vector(obs, lead)))
        if self.cnn is not None:
            parts.append(self.cnn([obs[key] for key in self.images], lead))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _vector(self, obs: Mapping[str, Tensor], lead: int) -> Tensor:
        parts: list[Tensor] = []
        if self.vectors:
            flat = flatten(obs, self.spec, self.vectors, lead)
            parts.append(flat if self.normalizer is None else self.normalizer(flat))
        if self.reads_actions:
            parts.append(flatten_actions(obs[ACTION], self.spec.action, lead))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def observe(self, obs: Mapping[str, Tensor], ranks: Ranks, lead: int = 2) -> None:
        """Update the normalizer, if there is one, with the vector observations of all ranks.

        `obs` maps keys to raw observations [*lead dims, *shape] without frame stacks.
        """
        if self.normalizer is not None:
            rows = flatten(obs, self.spec, self.vectors, lead)
            self.normalizer.update(rows.flatten(0, -2), ranks.sum)
