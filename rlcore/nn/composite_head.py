"""Policy head for composite actions (Dict or Tuple action spaces), and the distribution over such actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import MaskedCategoricals, Policy
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import Masks, allowed_choices
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import ActionSpec


class Joint:
    """Independent distributions over the parts of a composite action.

    Args:
        parts: distribution over each part.
        specs: spec of each part.
        noise_sizes: number of noise values of each part.
    """

    def __init__(self, parts: Sequence[Policy], specs: Sequence[ActionSpec], noise_sizes: Sequence[int]) -> None:
        self.parts, self.specs, self.noise_sizes = parts, specs, noise_sizes

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] float32 from the noise of all parts, [N, K]."""
        pieces = noise.split([*self.noise_sizes], -1)
        return _join([part.sample(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def mode(self) -> Tensor:
        """Return the most likely action of each part, [N, A] float32."""
        return _join([part.mode() for part in self.parts])

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-probability [N] of actions [N, A], summed over the parts."""
        pieces = _split(action, self.specs)
        return torch.stack([part.logprob(piece) for part, piece in zip(self.parts, pieces, strict=True)], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats, summed over the parts."""
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)


class CompositeHead(nn.Module):
    """Policy head (`ActionHead`) with a linear layer and a distribution for each part of a composite action.

    Args:
        inputs: number of input features.
        action: spec of the composite action.
        distribution: config key `distribution.type`. For Box parts: auto, normal or tanh_normal; other parts have
            categorical distributions.
        config: settings of the standard deviation of continuous actions, and of the initialization.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self, inputs: int, action: ActionSpec, distribution: str, config: ActorConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.action, self.kind = action, kind_of(action, distribution)
        of_part = [distribution if part.continuous else "auto" for part in action.parts]
        heads = [PolicyHead(inputs, part, of, config, rng) for part, of in zip(action.parts, of_part, strict=True)]
        self.heads = nn.ModuleList(heads)
        self._heads = tuple(heads)  # with their type
        self._widths = [head.linear.out_features + (0 if head.log_std is None else len(head.log_std)) for head in heads]

    def forward(self, x: Tensor) -> Tensor:
        """Return the parameters of all parts, [N, P], for features x [N, F]."""
        return torch.cat([head(x) for head in self._heads], -1)

    def policy(self, parameters: Tensor, masks: Masks | None = None) -> Policy:
        """Return the distribution over actions that has the parameters [N, P] returned by `forward`.

        If `masks` are given, choices of discrete parts that they forbid have probability 0.
        """
        pieces = parameters.split(self._widths, -1)
        parts: list[Policy] = [head.policy(piece) for head, piece in zip(self._heads, pieces, strict=True)]
        if masks is not None:
            discrete = [i for i, part in enumerate(self.action.parts) if part.nvec]
            allowed = allowed_choices(masks.spec, parameters, masks.obs).split([self._widths[i] for i in discrete], -1)
            for i, own in zip(discrete, allowed, strict=True):
                parts[i] = MaskedCategoricals(pieces[i], self.action.parts[i].nvec, own)
        return Joint(parts, self.action.parts, [head.noise_size for head in self._heads])

    def noise(self, batch: int, rng: Noise | None) -> Tensor:
        """Draw the noise of all parts for a batch of actions, [batch, K] float32."""
        return torch.cat([head.noise(batch, rng) for head in self._heads], -1)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, W] float64, within the bounds of the space."""
        pieces = _split(action, self.action.parts)
        converted = [head.to_env(piece) for head, piece in zip(self._heads, pieces, strict=True)]
        return torch.cat([part.reshape(action.shape[0], -1).double() for part in converted], -1)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, W] to the agent's actions [B, A] float32; the inverse of `to_env`."""
        pieces = action.split([part.width for part in self.action.parts], -1)
        return _join([head.from_env(piece) for head, piece in zip(self._heads, pieces, strict=True)])


def _split(action: Tensor, specs: Sequence[ActionSpec]) -> list[Tensor]:
    """Split composite actions [N, A] into the actions of the parts, in the dtype of each part."""
    pieces = action.split([part.size for part in specs], -1)
    return [piece.to(getattr(torch, part.agent_dtype)) for piece, part in zip(pieces, specs, strict=True)]


def _join(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat([piece.float() for piece in pieces], -1)
