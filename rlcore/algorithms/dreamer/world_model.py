"""World model: encoder, recurrent state-space model, and prediction heads for observation, reward and continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer.dense import Dense, glorot_linear
from rlcore.algorithms.dreamer.latents import Distribution, Latent
from rlcore.algorithms.dreamer.networks import DEFAULT, Networks, restore, show
from rlcore.algorithms.dreamer.rssm import RSSM, ModelState
from rlcore.algorithms.dreamer.world_groups import ObservationGroup, WorldGroup
from rlcore.functional.precision import to_float32
from rlcore.functional.scalars import ScalarHead, symexp, symlog
from rlcore.nn.encoder import flatten
from rlcore.spec import ArraySpec, EnvSpec

Obs = Mapping[str, Tensor]
Distance = Callable[[Tensor, Tensor, int], Tensor]  # (prediction, target, number of leading dimensions) -> [*lead]


def frames(spec: EnvSpec, keys: Sequence[str]) -> list[ArraySpec]:
    """Return the specs of image observations, changed to single frames.

    The world model does not need stacked frames, because its state represents the past.
    """
    return [replace(spec.obs[key], window=None) for key in keys]


class KeyEncoder(nn.Module):
    """Encoder of observations to features: a CNN encodes images, an MLP encodes vectors.

    Args:
        spec: spec of the environment.
        images: keys of image observations; all images are square and have the same size.
        vectors: keys of vector observations, which are concatenated in this order.
        config: settings of the layers; `config.symlog` selects if vectors are transformed by symlog.
        rng: CPU generator for the initialization.
        networks: factories of the networks.
    """

    def __init__(
        self,
        spec: EnvSpec,
        images: Sequence[str],
        vectors: Sequence[str],
        config: ObservationGroup,
        rng: torch.Generator,
        networks: Networks = DEFAULT,
    ) -> None:
        super().__init__()
        self.spec, self.images, self.vectors = spec, tuple(images), tuple(vectors)
        self.symlog = config.symlog
        self.cnn = networks.image_encoder(frames(spec, images), config.stages, rng) if images else None
        size = sum(spec.obs[key].size for key in vectors)
        self.mlp = networks.dense(size, config.layers, rng) if vectors else None
        self.output_size = sum(part.output_size for part in (self.cnn, self.mlp) if part is not None)

    def preprocess(self, obs: Obs, lead: int) -> dict[str, Tensor]:
        """Convert observations of the environment to inputs of the encoder, which are also targets of the decoder.

        Args:
            obs: observation key -> [*lead, *shape], in the environment's format.
            lead: number of leading dimensions.

        Returns:
            key -> float32: images [*lead, channels, height, width], scaled to [-½, ½] if their pixels are integers, and
            vectors [*lead, size], transformed by symlog if `config.symlog` is true.
        """
        shown = {key: show(obs[key], self.spec.obs[key], lead) for key in self.images}
        seen = {key: image.unflatten(0, obs[key].shape[:lead]) for key, image in shown.items()}
        vectors = {key: flatten(obs, self.spec, [key], lead) for key in self.vectors}
        return seen | {key: symlog(vector) if self.symlog else vector for key, vector in vectors.items()}

    def restore(self, made: Obs) -> dict[str, Tensor]:
        """Convert decoded observations to the environment's format; the inverse of `preprocess`.

        `made` maps some of the observation keys to [*lead, ...]; the result maps them to [*lead, *shape] float32, in
        the environment's units. For a Discrete observation, the decoder outputs one number per possible value. The
        result is the value with the largest number.
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
        """Encode observations, which `preprocess` has converted, to features [*lead, E]."""
        parts: list[Tensor] = []
        if self.cnn is not None:
            images = [seen[key].flatten(0, -4) for key in self.images]
            parts.append(self.cnn(images).unflatten(0, seen[self.images[0]].shape[:-3]))
        if self.mlp is not None:
            vectors = [seen[key] for key in self.vectors]
            parts.append(self.mlp(torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def head_name(key: str) -> str:
    """Return the name of the output layer of an observation key in `KeyDecoder.heads`.

    The dot of a nested key `a.b` is percent-encoded, because torch forbids dots in module names.
    """
    return f"of_{key.replace('.', '%2E')}"


class KeyDecoder(nn.Module):
    """Decoder that predicts observations from features of model states, in the format of `KeyEncoder.preprocess`.

    Args:
        inputs: F; number of features of a model state.
        spec: spec of the environment.
        images: keys of image observations to predict; all images are square and have the same size.
        vectors: keys of vector observations to predict.
        config: settings of the layers.
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
        networks: factories of the networks.
    """

    def __init__(
        self,
        inputs: int,
        spec: EnvSpec,
        images: Sequence[str],
        vectors: Sequence[str],
        config: ObservationGroup,
        scale: float | None,
        rng: torch.Generator,
        networks: Networks = DEFAULT,
    ) -> None:
        super().__init__()
        self.spec, self.images, self.vectors = spec, tuple(images), tuple(vectors)
        self.cnn = networks.image_decoder(inputs, frames(spec, images), config.stages, rng, scale) if images else None
        self.mlp = networks.dense(inputs, config.layers, rng) if vectors else None
        sizes = {key: spec.obs[key].size for key in vectors}
        units = self.mlp.output_size if self.mlp is not None else 0
        self.heads = nn.ModuleDict({head_name(key): glorot_linear(units, n, rng, scale) for key, n in sizes.items()})

    def forward(self, feat: Tensor) -> dict[str, Tensor]:
        """Predict observations from features [*lead, F] of model states.

        Return key -> images [*lead, channels, height, width] or vectors [*lead, size].
        """
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
        """Compute the reconstruction loss, summed over observation keys.

        Args:
            made: predictions, returned by `forward`.
            seen: targets, returned by `KeyEncoder.preprocess`.
            lead: number of leading dimensions.
            distance: function (prediction, target, lead) -> [*lead] that computes the loss of one key.

        Returns:
            Loss, [*lead].
        """
        return torch.stack([distance(guess, seen[key], lead) for key, guess in made.items()]).sum(0)


class Observed(NamedTuple):
    """Model states inferred from N sequences of L time steps, their priors and posteriors; each is [L, N, ...]."""

    state: ModelState
    prior: Distribution
    posterior: Distribution


class WorldModel(nn.Module):
    """World model: encoder, RSSM, and prediction heads for observation, reward and continue.

    Args:
        config: config of the world model, with the settings of its networks.
        spec: spec of the environment.
        encoded: two sequences, the keys of images and of vectors that the encoder reads.
        decoded: two sequences, the keys of images and of vectors that the decoder predicts.
        latent: distribution of the stochastic part of the model state.
        number: distribution of the predicted reward.
        scales: initialization scale of all output layers except the reward head's, and scale of the reward head's
            output layer; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
        networks: factories of the networks.
    """

    def __init__(
        self,
        config: WorldGroup,
        spec: EnvSpec,
        encoded: tuple[Sequence[str], Sequence[str]],
        decoded: tuple[Sequence[str], Sequence[str]],
        latent: Latent,
        number: ScalarHead,
        scales: tuple[float | None, float | None],
        rng: torch.Generator,
        networks: Networks = DEFAULT,
    ) -> None:
        super().__init__()
        scale, self.number = scales[0], number
        self.encoder = KeyEncoder(spec, *encoded, config.encoder, rng, networks)
        self.rssm = RSSM(latent, config, self.encoder.output_size, spec.action.flat_size, scale, rng, networks)
        self.feat_size = sum(self.rssm.sizes)
        self.decoder = KeyDecoder(self.feat_size, spec, *decoded, config.observation_model, scale, rng, networks)
        self.reward = networks.dense(self.feat_size, config.reward_model.layers, rng, number.outputs, scales[1])
        self.continue_head: Dense | None = None
        if config.ends:
            self.continue_head = networks.dense(self.feat_size, config.discount_model.layers, rng, 1, scale)

    def observe(
        self, seen: Obs, prev_action: Tensor, is_first: Tensor, noise: Tensor, state: ModelState | None = None
    ) -> Observed:
        """Infer the model states of N sequences of L time steps with `RSSM.observe`.

        `seen` contains the observations, key -> [L, N, ...], which `KeyEncoder.preprocess` has converted.
        """
        return Observed(*self.rssm.observe(self.encoder(seen), prev_action, is_first, noise, state))

    def reward_loss(self, feat: Tensor, reward: Tensor) -> Tensor:
        """Compute the loss of the reward head, -log p(reward | state), [...].

        `feat` [..., F] contains the features of model states. `reward` [...] contains the reward of the step that led
        to each state.
        """
        return self.number.loss(self.reward(feat), reward)

    def predict_reward(self, feat: Tensor) -> Tensor:
        """Predict rewards [...], in the environment's unit, of the steps that led to states with features [..., F]."""
        return self.number.mean(self.reward(feat))

    def continue_loss(self, feat: Tensor, continues: Tensor) -> Tensor:
        """Compute the loss of the continue head, [...], for features [..., F] of model states.

        The loss is the cross-entropy between the predicted probability that the episode continues and the target
        probability `continues` [...]. It is 0 if the model has no continue head.
        """
        if self.continue_head is None:
            return torch.zeros_like(continues)
        return F.binary_cross_entropy_with_logits(self.predict_continue(feat), continues, reduction="none")

    def predict_continue(self, feat: Tensor) -> Tensor:
        """Return the logits [...] of the continue head for features [..., F] of model states.

        The model must have a continue head.
        """
        assert self.continue_head is not None, "use_continues=false"
        return self.continue_head(feat).squeeze(-1)
