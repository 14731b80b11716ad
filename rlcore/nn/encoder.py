"""Encoding of observations to one feature vector: flattening, normalization, MLP, CNN of the Nature DQN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.stats import RunningMoments, Sum
from rlcore.nn.mlp import MLP, initialise, linear
from rlcore.nn.network_keys import NATURE_LAYERS, EncoderConfig
from rlcore.spec import ACTION, ActionSpec, ArraySpec, EnvSpec, Window, valid_key
from rlcore.types import Ranks


def flatten(obs: Mapping[str, Tensor], spec: EnvSpec, keys: Sequence[str], lead: int) -> Tensor:
    """Flatten the observations of several keys and concatenate them to one vector per observation.

    Discrete observations become one-hot vectors.

    Args:
        obs: key -> observations [*lead dims, *shape], or [*lead dims, frames, *shape] with a frame stack.
        spec: observation and action spaces of the environment.
        keys: keys to concatenate, in this order.
        lead: number of leading (batch) dimensions.

    Returns:
        Vectors [*lead dims, F] float32.
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
    """Flatten an agent's actions to one vector per batch element; discrete actions become one-hot vectors.

    Args:
        action: [*lead dims, A], or [*lead dims, frames, A] for several past actions.
        spec: action space.
        lead: number of leading (batch) dimensions.

    Returns:
        Vectors [*lead dims, F] float32.
    """
    if spec.parts:
        pieces = action.split([part.size for part in spec.parts], -1)
        rows = [flatten_actions(piece, part, action.ndim - 1) for piece, part in zip(pieces, spec.parts, strict=True)]
        return torch.cat(rows, -1).reshape(*action.shape[:lead], -1)
    if not spec.continuous:
        action = torch.cat([_one_hot(action[..., i], 0, n) for i, n in enumerate(spec.nvec)], -1)
    return action.reshape(*action.shape[:lead], -1).float()


class Normalizer(nn.Module):
    """Normalization of observation vectors by their running mean and variance, with clipping to ±`clip`.

    The statistics change only in `update`, which the learner calls once per update of the agent. Data collection and
    losses therefore use the same statistics. For example, PPO's probability ratio is exactly 1 before the first
    gradient step. The statistics are float64, whatever the precision of the networks is.

    Args:
        size: R; size of the observation vector of one time step, without frame stacks.
        clip: maximum absolute value of the output.
        frames: for each observation key in the vector, in order: (size of one frame, number of frames). Each frame of a
            frame stack is normalized by the statistics of single time steps. () = no frame stacks.
    """

    def __init__(self, size: int, clip: float, frames: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.moments = RunningMoments(size)
        self.clip, self.size, self.frames = clip, size, tuple(frames)
        # Float32 copies for `forward`. They are buffers, so that they become inputs of a compiled function.
        self.register_buffer("mean", self._of_frames(torch.zeros(size)), persistent=False)
        self.register_buffer("scale", self._of_frames(torch.ones(size)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize observation vectors x [..., F] to float32.

        F is the number of elements of one observation, or a multiple of it if x contains stacked frames.
        """
        return ((x - self.mean) / self.scale).clamp(-self.clip, self.clip)

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Update the running statistics.

        Args:
            rows: [N, R]; observation vectors of N time steps, without frame stacks.
            total: function that sums a tensor over all ranks, which includes the observations of the other ranks in the
                statistics. Default: no sum, for a single rank.
        """
        assert rows.shape[-1] == self.size, (rows.shape, self.size)
        self.moments.update(rows, total)
        self._read()

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the running statistics; PyTorch includes them in the module's `state_dict`."""
        return self.moments.state_dict()

    def set_extra_state(self, state: Mapping[str, Tensor | float]) -> None:
        """Restore the running statistics returned by `get_extra_state`."""
        self.moments.load_state_dict(state)
        self._read()

    def _read(self) -> None:
        device = self.mean.device
        read = (self.moments.mean, self.moments.scale())
        self.mean, self.scale = (self._of_frames(x).float().to(device) for x in read)

    def _of_frames(self, row: Tensor) -> Tensor:
        """Repeat the part of a vector that belongs to an observation key once per frame of the key: [R] -> [F]."""
        if not self.frames:
            return row
        parts = row.split([size for size, _ in self.frames])
        return torch.cat([part.repeat(count) for part, (_, count) in zip(parts, self.frames, strict=True)])

    def _apply(self, fn: Any, recurse: bool = True) -> Normalizer:
        """Convert or move the module, but keep its buffers in float32, because bfloat16 would round the statistics."""
        super()._apply(fn, recurse)
        self._read()
        return self


class MultiEncoder(nn.Module):
    """Encoder of raw observations: an MLP for vector keys, a CNN for image keys.

    If the agent also receives its past actions, the MLP's input includes them: discrete actions as one-hot vectors,
    continuous actions without normalization.

    Args:
        spec: observation and action spaces of the environment.
        vectors: vector keys, flattened and concatenated in this order; () = none.
        images: image keys, concatenated along channels in this order; () = none.
        config: layers of the MLP, and numbers of output features.
        rng: CPU generator for the initialization.
        clip: normalize vectors by their running mean and std, and clip the result to ±`clip`; None = no normalization.
        history: key -> window (number and spacing of the frames that the agent receives), for observation keys with a
            frame stack and for past actions (`rlcore.spec.ACTION`). None = the windows that `spec` defines.
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
        self.padded = {key: spec.obs[key].size for key in vectors if key in history and history[key].padded}
        self.size = sum(size * count for size, count in frames) + sum(history[key].frames for key in self.padded)
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
        """Encode observations to features.

        Args:
            obs: key -> [*lead dims, *shape], or [*lead dims, frames, *shape] for keys with a window. The masks of
                padded windows are part of the MLP's input.
            lead: number of leading (batch) dimensions.

        Returns:
            Features [*lead dims, F] float32: those of the MLP, followed by those of the CNN. If the MLP has no layers,
            its features are the concatenated vectors.
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
            parts.append(flat if self.normalizer is None else self._normalize(flat, obs, lead))
        parts += [obs[valid_key(key)].float() for key in self.padded]
        if self.reads_actions:
            parts.append(flatten_actions(obs[ACTION], self.spec.action, lead))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _normalize(self, flat: Tensor, obs: Mapping[str, Tensor], lead: int) -> Tensor:
        """Normalize vectors [*lead dims, F]; frames of padded windows that are not valid stay zero."""
        assert self.normalizer is not None
        if not self.padded:
            return self.normalizer(flat)
        kept = {k: obs[valid_key(k)].repeat_interleave(size, -1) for k, size in self.padded.items()}
        parts = [kept.get(k, torch.ones_like(_flat(obs[k], self.spec.obs[k], lead))).float() for k in self.vectors]
        return self.normalizer(flat) * torch.cat(parts, -1)

    def observe(self, obs: Mapping[str, Tensor], ranks: Ranks, lead: int = 2) -> None:
        """Include vector observations of all ranks in the running statistics for normalization.

        `obs` maps keys to raw observations [*lead dims, *shape] without frame stacks. Nothing happens if observations
        are not normalized.
        """
        if self.normalizer is not None:
            rows = flatten(obs, self.spec, self.vectors, lead)
            self.normalizer.update(rows.flatten(0, -2), ranks.sum)


def pixels(x: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    """Reshape images to [N, channels, height, width], the input format of convolutions.

    The frames of a frame stack are concatenated along channels. The memory format is channels_last: convolutions on a
    CPU then take 30 % less time.

    Args:
        x: [*lead, *shape], or [*lead, frames, *shape] with a frame stack.
        spec: spec of the image; it defines whether channels are the first or the last dimension of `shape`.
        lead: number of leading (batch) dimensions; N is their product.

    Returns:
        Images [N, channels, height, width] with the dtype of x.
    """
    x = x if spec.channels_first else x.movedim(-1, -3)
    return x.reshape(-1, *x.shape[lead:]).flatten(1, -3).contiguous(memory_format=torch.channels_last)


def scale_pixels(x: Tensor) -> Tensor:
    """Convert pixels to float32: integers from 0 to 255 are scaled to [-½, ½], floats are unchanged."""
    return x.float() if x.is_floating_point() else x.float().div_(255).sub_(0.5)


class NatureCNN(nn.Module):
    """CNN of the Nature DQN (Mnih et al. 2015, doi:10.1038/nature14236, "Model architecture").

    It has three convolutions and a linear layer, each followed by a ReLU.

    Args:
        specs: specs of the image keys. All images must have the same height and width; their channels are concatenated.
        outputs: number of output features of the linear layer.
        rng: CPU generator for the initialization.
        gain: gain of orthogonal weights; None = PyTorch's default initialization.
    """

    def __init__(self, specs: Sequence[ArraySpec], outputs: int, rng: torch.Generator, gain: float | None) -> None:
        super().__init__()
        self.specs = tuple(specs)
        (height, width), channels = specs[0].pixels, sum(spec.channels for spec in specs)
        layers: list[nn.Module] = []
        for filters, kernel, stride in NATURE_LAYERS:
            convolution: Any = nn.utils.skip_init(nn.Conv2d, channels, filters, kernel, stride, device="cpu")
            layers += [initialise(convolution, channels * kernel**2, rng, gain), nn.ReLU()]
            height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, filters
        layers += [nn.Flatten(), linear(channels * height * width, outputs, rng, gain), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.output_size = outputs

    def forward(self, images: Sequence[Tensor], lead: int) -> Tensor:
        """Encode images to features.

        Args:
            images: one tensor for each image key, in the order of `specs`. Its shape is [*lead, *shape], or
                [*lead, frames, *shape] with a frame stack.
            lead: number of leading (batch) dimensions.

        Returns:
            Features [*lead, outputs] float32.
        """
        first: Any = self.layers[0]
        parts = [pixels(x, spec, lead) for x, spec in zip(images, self.specs, strict=True)]
        x = torch.cat([scale_pixels(part) for part in parts], 1) if len(parts) > 1 else scale_pixels(parts[0])
        return self.layers(x.to(first.weight.dtype)).float().unflatten(0, images[0].shape[:lead])
