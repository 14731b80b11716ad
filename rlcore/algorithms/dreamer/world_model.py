"""World model: encoder, recurrent state-space model, and decoders of observation, reward and continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer.dense import Dense, glorot_linear
from rlcore.algorithms.dreamer.rssm import RSSM, Latent, ModelState
from rlcore.algorithms.dreamer.stages import ImageDecoder, ImageEncoder, restore, show
from rlcore.algorithms.dreamer.world_keys import ObservationKeys, WorldKeys
from rlcore.functional.precision import to_float32
from rlcore.functional.symlog import symexp, symlog
from rlcore.nn.encoder import flatten
from rlcore.spec import ArraySpec, EnvSpec

Obs = Mapping[str, Tensor]
Distance = Callable[[Tensor, Tensor, int], Tensor]  # (prediction, target, number of leading dimensions) -> [*lead]


class ScalarHead(Protocol):
    """Protocol of the distribution of a predicted scalar; implemented by `TwoHot` and `UnitNormal`."""

    @property
    def outputs(self) -> int:
        """Number K of network outputs for one scalar."""
        ...

    def loss(self, outputs: Tensor, x: Tensor, /) -> Tensor:
        """Compute -log p(x), [...], for targets x [...]; the network outputs [..., K] define the distribution p."""
        ...

    def mean(self, outputs: Tensor, /) -> Tensor:
        """Return the scalars [...] that the network outputs [..., K] predict."""
        ...


def frames(spec: EnvSpec, keys: Sequence[str]) -> list[ArraySpec]:
    """Return the specs of image keys without frame stacks, because the model's state represents the past."""
    return [replace(spec.obs[key], window=None) for key in keys]


class KeyEncoder(nn.Module):
    """Encoder of observations to features: a CNN for image keys, an MLP for vector keys.

    Args:
        spec: spec of the environment.
        images: image keys; square images of one size that the stages accept.
        vectors: vector keys, concatenated in this order.
        config: layers, and the use of symlog for vectors.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self,
        spec: EnvSpec,
        images: Sequence[str],
        vectors: Sequence[str],
        config: ObservationKeys,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.spec, self.images, self.vectors = spec, tuple(images), tuple(vectors)
        self.symlog = config.symlog
        self.cnn = ImageEncoder(frames(spec, images), config.stages, rng) if images else None
        size = sum(spec.obs[key].size for key in vectors)
        self.mlp = Dense(size, config.layers, rng) if vectors else None
        self.output_size = sum(part.output_size for part in (self.cnn, self.mlp) if part is not None)

    def preprocess(self, obs: Obs, lead: int) -> dict[str, Tensor]:
        """Convert raw observations, key -> [*lead, *shape], to the format of encoder inputs and decoder targets.

        Args:
            obs: raw observations.
            lead: number of leading dimensions.

        Returns:
            Images [*lead, channels, height, width] in [-½, ½], and vectors [*lead, size], in symlog space if the config
            has `symlog`; float32.
        """
        shown = {key: show(obs[key], self.spec.obs[key], lead) for key in self.images}
        seen = {key: image.unflatten(0, obs[key].shape[:lead]) for key, image in shown.items()}
        vectors = {key: flatten(obs, self.spec, [key], lead) for key in self.vectors}
        return seen | {key: symlog(vector) if self.symlog else vector for key, vector in vectors.items()}

    def restore(self, made: Obs) -> dict[str, Tensor]:
        """Convert decoded observations of some keys back to the environment's format; the inverse of `preprocess`.

        Maps key -> [*lead, ...] to key -> [*lead, *shape]. The result is float32, in the environment's units. A
        decoded Discrete observation (one number per value) is converted to its most likely value.
        """
        found: dict[str, Tensor] = {}
        for key, part in made.items():
            spec = self.spec.obs[key]
            if key in self.images:
                found[key] = restore(part, spec)
            elif spec.n is not None:
                found[key] = part.argmax(-1).float() + spec.start
            else:
                found[key] = (symexp(part) if self.symlog else part).reshape(*part.shape[:-1], *spec.shape)
        return found

    def forward(self, seen: Obs) -> Tensor:
        """Encode observations, converted by `preprocess`, to features [*lead, E]."""
        parts: list[Tensor] = []
        if self.cnn is not None:
            images = [seen[key].flatten(0, -4) for key in self.images]
            parts.append(self.cnn(images).unflatten(0, seen[self.images[0]].shape[:-3]))
        if self.mlp is not None:
            vectors = [seen[key] for key in self.vectors]
            parts.append(self.mlp(torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def head_name(key: str) -> str:
    """Return the name of the decoder's module for an observation key.

    The dot of a nested key `a.b` is percent-encoded, because torch forbids dots in module names.
    """
    return f"of_{key.replace('.', '%2E')}"


class KeyDecoder(nn.Module):
    """Decoder of states to observations, in the format of `KeyEncoder.preprocess`.

    Args:
        inputs: F; features of a state.
        spec: spec of the environment.
        images: image keys to decode; square images of one size that the stages accept.
        vectors: vector keys to decode.
        config: layers.
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self,
        inputs: int,
        spec: EnvSpec,
        images: Sequence[str],
        vectors: Sequence[str],
        config: ObservationKeys,
        scale: float | None,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.spec, self.images, self.vectors = spec, tuple(images), tuple(vectors)
        self.cnn = ImageDecoder(inputs, frames(spec, images), config.stages, rng, scale) if images else None
        self.mlp = Dense(inputs, config.layers, rng) if vectors else None
        sizes = {key: spec.obs[key].size for key in vectors}
        units = self.mlp.output_size if self.mlp is not None else 0
        self.heads = nn.ModuleDict({head_name(key): glorot_linear(units, n, rng, scale) for key, n in sizes.items()})

    def forward(self, feat: Tensor) -> dict[str, Tensor]:
        """Decode states [*lead, F] to key -> images [*lead, channels, height, width] or vectors [*lead, size]."""
        made: dict[str, Tensor] = {}
        if self.cnn is not None:
            lead = feat.shape[:-1]
            images = self.cnn(feat.flatten(0, -2))
            made |= {key: image.unflatten(0, lead) for key, image in zip(self.images, images, strict=True)}
        if self.mlp is not None:
            hidden = self.mlp(feat)
            for key in self.vectors:
                head: nn.Linear = self.heads[head_name(key)]  # pyright: ignore[reportAssignmentType]
                made[key] = to_float32(head(hidden.to(head.weight.dtype)))
        return made

    @staticmethod
    def loss(made: Mapping[str, Tensor], seen: Obs, lead: int, distance: Distance) -> Tensor:
        """Compute the reconstruction loss, summed over keys.

        Args:
            made: predictions of `forward`.
            seen: targets of `KeyEncoder.preprocess`.
            lead: number of leading dimensions.
            distance: loss of one key.

        Returns:
            Loss, [*lead].
        """
        return torch.stack([distance(guess, seen[key], lead) for key, guess in made.items()]).sum(0)


class Observed(NamedTuple):
    """States inferred from N sequences of L rows, with their priors and posteriors, [L, N, ...]."""

    state: ModelState
    prior: Any
    posterior: Any


class WorldModel(nn.Module):
    """World model: encoder, RSSM, and prediction heads for observation, reward and continue.

    Args:
        config: layers of the networks.
        spec: spec of the environment.
        encoded: image keys and vector keys to encode.
        decoded: image keys and vector keys to decode.
        latent: distribution of the stochastic state.
        number: distribution of the predicted reward.
        scales: two initialization scales: of output layers, and of the reward head; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self,
        config: WorldKeys,
        spec: EnvSpec,
        encoded: tuple[Sequence[str], Sequence[str]],
        decoded: tuple[Sequence[str], Sequence[str]],
        latent: Latent,
        number: ScalarHead,
        scales: tuple[float | None, float | None],
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        scale, self.number = scales[0], number
        self.encoder = KeyEncoder(spec, *encoded, config.encoder, rng)
        self.rssm = RSSM(latent, config, self.encoder.output_size, spec.action.flat_size, scale, rng)
        self.feat_size = sum(self.rssm.sizes)
        self.decoder = KeyDecoder(self.feat_size, spec, *decoded, config.observation_model, scale, rng)
        self.reward = Dense(self.feat_size, config.reward_model.layers, rng, number.outputs, scales[1])
        self.continue_head: Dense | None = None
        if config.ends:
            self.continue_head = Dense(self.feat_size, config.discount_model.layers, rng, 1, scale)

    def observe(
        self, seen: Obs, prev_action: Tensor, is_first: Tensor, noise: Tensor, state: ModelState | None = None
    ) -> Observed:
        """Infer the states of N sequences of L rows with `RSSM.observe`.

        The observations `seen` were converted by `KeyEncoder.preprocess`.
        """
        return Observed(*self.rssm.observe(self.encoder(seen), prev_action, is_first, noise, state))

    def reward_loss(self, feat: Tensor, reward: Tensor) -> Tensor:
        """Compute -log p(reward | state), [...], for rewards [...] and states [..., F].

        Row t contains the reward of the step from t - 1 to t.
        """
        return self.number.loss(self.reward(feat), reward)

    def predict_reward(self, feat: Tensor) -> Tensor:
        """Predict the reward [...] of the step that led to states [..., F], in the environment's unit."""
        return self.number.mean(self.reward(feat))

    def continue_loss(self, feat: Tensor, continues: Tensor) -> Tensor:
        """Compute the loss of the continue head at states [..., F]; it is 0 if the model has no continue head.

        The loss is the cross-entropy to the target probabilities `continues` [...] that the episode continues.
        """
        if self.continue_head is None:
            return torch.zeros_like(continues)
        return F.binary_cross_entropy_with_logits(self.predict_continue(feat), continues, reduction="none")

    def predict_continue(self, feat: Tensor) -> Tensor:
        """Return the logits [...] of the continue head at states [..., F]; the model must have this head."""
        assert self.continue_head is not None, "use_continues=false"
        return self.continue_head(feat).squeeze(-1)
