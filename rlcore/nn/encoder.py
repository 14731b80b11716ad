"""From an observation dict to one feature vector: flatten, normalise, encode."""

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
    """Concatenate observation keys, in their order: key -> [*lead dims, *shape] -> [*lead dims, F] float32.

    `lead` leading dimensions are kept; Discrete keys become one-hot.
    """
    parts = [_flat(obs[key], spec.obs[key], lead) for key in keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _flat(x: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    if spec.n is not None:
        x = _one_hot(x, spec.start, spec.n)
    return x.reshape(*x.shape[:lead], -1).float()


def _one_hot(x: Tensor, start: int, n: int) -> Tensor:
    choices = torch.arange(start, start + n, device=x.device)
    return (x.long().unsqueeze(-1) == choices).float()  # torch's looks at the values, which no graph can


def flatten_actions(action: Tensor, spec: ActionSpec, lead: int) -> Tensor:
    """Actions [*lead dims, (frames,) A] as an agent says them -> [*lead dims, F] float32; discrete ones one-hot."""
    if not spec.continuous:
        action = torch.cat([_one_hot(action[..., i], 0, n) for i, n in enumerate(spec.nvec)], -1)
    return action.reshape(*action.shape[:lead], -1).float()


class Normalizer(nn.Module):
    """Observations [..., F] brought to mean 0 and variance 1 by the statistics of training, then clipped to ±`clip`.

    The statistics change only when the learner says so (once an update), so that a rollout and the losses on it see
    the same numbers and the first ratio is exactly 1. They are kept in float64 whatever the precision of the networks.

    Args:
        size: numbers in a row, R.
        clip: largest result.
        frames: (numbers of a frame, frames) of each key in a row, in their order: `forward` takes all frames of a key,
            each by the statistics of its rows. () = F is R.
    """

    def __init__(self, size: int, clip: float, frames: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.moments = RunningMoments(size)
        self.clip, self.size, self.frames = clip, size, tuple(frames)
        # What `forward` reads, float32: buffers, for a compiled function takes them as inputs.
        self.register_buffer("mean", self._of_frames(torch.zeros(size)), persistent=False)
        self.register_buffer("scale", self._of_frames(torch.ones(size)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., F] float32."""
        return ((x - self.mean) / self.scale).clamp(-self.clip, self.clip)

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Merge raw rows [N, R], those of all ranks that `total` sums over."""
        assert rows.shape[-1] == self.size, (rows.shape, self.size)
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
        read = (self.moments.mean, self.moments.scale())
        self.mean, self.scale = (self._of_frames(x).float().to(device) for x in read)

    def _of_frames(self, row: Tensor) -> Tensor:
        """[R] -> [F]: the part of each key as often as it has frames."""
        if not self.frames:
            return row
        parts = row.split([size for size, _ in self.frames])
        return torch.cat([part.repeat(count) for part, (_, count) in zip(parts, self.frames, strict=True)])

    def _apply(self, fn: Any, recurse: bool = True) -> Normalizer:
        """Moved to another device or precision, what is read stays float32: bfloat16 would round the statistics."""
        super()._apply(fn, recurse)
        self._read()
        return self


class MultiEncoder(nn.Module):
    """Observations to features: vector keys through one perceptron, image keys through one network of convolutions.

    It takes observations as environments give them; all that is computed of them, it computes. Behind the vectors come
    past actions, where the history has them: one-hot or as they are, and never normalised.

    Args:
        spec: of the environment.
        vectors: the keys that are laid flat, one behind the other and frame by frame, in their order; () = none.
        images: the image keys, likewise.
        config: layers and features.
        rng: CPU generator for the initialisation.
        clip: vectors are normalised by their running mean and std, and clipped here; None = they are not.
        history: the agent's, of which keys are shown with a window; None = the windows that `spec` asks for.
    """

    # size: numbers of the flat vector, those of all frames and of past actions; output_size: F

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
        """Key -> [*lead dims, *shape], or [*lead dims, frames, *shape] with a window -> [*lead dims, F] float32.

        `lead` leading dimensions are kept. A perceptron without layers hands the flat vector on.
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
        """Let the vectors of these rows count in the normaliser, each row once, and those of the other ranks.

        Rows are as the environment gave them, key -> [*lead dims, *shape], without frames.
        """
        if self.normalizer is not None:
            rows = flatten(obs, self.spec, self.vectors, lead)
            self.normalizer.update(rows.flatten(0, -2), ranks.sum)
