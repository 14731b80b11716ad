"""World model: encoders and decoders by key around a recurrent state-space model, and heads for reward and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.functional.precision import widen
from rlcore.functional.symlog import symexp, symlog
from rlcore.nn.dense import Dense, glorot_linear
from rlcore.nn.encoder import flatten
from rlcore.nn.rssm import RSSM, Latent, ModelState
from rlcore.nn.stages import ImageDecoder, ImageEncoder, restore, show
from rlcore.nn.world_keys import ObservationKeys, WorldKeys
from rlcore.spec import ArraySpec, EnvSpec

Obs = Mapping[str, Tensor]
Distance = Callable[[Tensor, Tensor, int], Tensor]  # guess, target [*lead, ...] each, and how many are leading


class Number(Protocol):
    """Form in which a network tells a number: `rlcore.functional` has `TwoHot` and `UnitNormal`."""

    @property
    def outputs(self) -> int:
        """K: what the network gives for one."""
        ...

    def loss(self, outputs: Tensor, x: Tensor, /) -> Tensor:
        """-log p of numbers. outputs [..., K], x [...] -> [...]."""
        ...

    def mean(self, outputs: Tensor, /) -> Tensor:
        """[..., K] -> the numbers [...]."""
        ...


def frames(spec: EnvSpec, keys: Sequence[str]) -> list[ArraySpec]:
    """The images of these keys without a past: a state remembers it."""
    return [replace(spec.obs[key], window=None) for key in keys]


class KeyEncoder(nn.Module):
    """Observations to features: image keys through one network of convolutions, vector keys through one perceptron.

    Args:
        spec: of the environment.
        images: the image keys, of one size, a power of two.
        vectors: the others, laid one behind the other.
        config: layers, and whether vectors are symlogged.
        rng: CPU generator for the initialisation.
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

    def see(self, obs: Obs, lead: int) -> dict[str, Tensor]:
        """Observations as the model sees and reconstructs them.

        Key -> [*lead, *shape] as the environment gave it -> images [*lead, channels, height, width] from -½ to ½,
        vectors [*lead, size], in symlog space where the config says so, float32.
        """
        shown = {key: show(obs[key], self.spec.obs[key], lead) for key in self.images}
        seen = {key: image.unflatten(0, obs[key].shape[:lead]) for key, image in shown.items()}
        vectors = {key: flatten(obs, self.spec, [key], lead) for key in self.vectors}
        return seen | {key: symlog(vector) if self.symlog else vector for key, vector in vectors.items()}

    def restore(self, made: Obs) -> dict[str, Tensor]:
        """`see` undone of some keys: [*lead, ...] -> key -> [*lead, *shape] float32 in the environment's units.

        A Discrete observation becomes its likeliest value.
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
        """Observations, as `see` gives them -> features [*lead, E]."""
        parts: list[Tensor] = []
        if self.cnn is not None:
            images = [seen[key].flatten(0, -4) for key in self.images]
            parts.append(self.cnn(images).unflatten(0, seen[self.images[0]].shape[:-3]))
        if self.mlp is not None:
            vectors = [seen[key] for key in self.vectors]
            parts.append(self.mlp(torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def head_name(key: str) -> str:
    """Name of a key's module; torch refuses the dot of a nested key, `a.b`, which is written as in an address."""
    return f"of_{key.replace('.', '%2E')}"


class KeyDecoder(nn.Module):
    """States back to observations, as `KeyEncoder.see` gives them.

    Args:
        inputs: F, of a state.
        spec: of the environment.
        images: the image keys, of one size, a power of two.
        vectors: the others.
        config: layers.
        scale: of output weights, as `rlcore.nn.dense.initialise_glorot` has it.
        rng: CPU generator for the initialisation.
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
        """[*lead, F] -> key -> images [*lead, channels, height, width], vectors [*lead, size]."""
        made: dict[str, Tensor] = {}
        if self.cnn is not None:
            lead = feat.shape[:-1]
            images = self.cnn(feat.flatten(0, -2))
            made |= {key: image.unflatten(0, lead) for key, image in zip(self.images, images, strict=True)}
        if self.mlp is not None:
            hidden = self.mlp(feat)
            for key in self.vectors:
                head: nn.Linear = self.heads[head_name(key)]  # pyright: ignore[reportAssignmentType]
                made[key] = widen(head(hidden.to(head.weight.dtype)))
        return made

    @staticmethod
    def loss(made: Mapping[str, Tensor], seen: Obs, lead: int, distance: Distance) -> Tensor:
        """Distance of what was made from what was seen, summed over keys.

        Args:
            made: as `forward` gives it.
            seen: as `KeyEncoder.see` gives it.
            lead: leading dimensions.
            distance: of one key's.

        Returns:
            [*lead].
        """
        return torch.stack([distance(guess, seen[key], lead) for key, guess in made.items()]).sum(0)


class Observed(NamedTuple):
    """L rows of N sequences as the model sees them: states, and their distributions before and after each row."""

    state: ModelState
    prior: Any
    posterior: Any


class WorldModel(nn.Module):
    """Encoder, recurrent state-space model, and what is told of its states: observations, reward, whether it goes on.

    Args:
        config: its networks.
        spec: of the environment.
        encoded: image keys and vector keys that are seen.
        decoded: those that are reconstructed.
        latent: form of the stochastic part.
        number: form in which the reward is told.
        scales: of output weights, and of those of the reward, as `rlcore.nn.dense.initialise_glorot` has it.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self,
        config: WorldKeys,
        spec: EnvSpec,
        encoded: tuple[Sequence[str], Sequence[str]],
        decoded: tuple[Sequence[str], Sequence[str]],
        latent: Latent,
        number: Number,
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
        self.goes_on: Dense | None = None
        if config.ends:
            self.goes_on = Dense(self.feat_size, config.discount_model.layers, rng, 1, scale)

    def observe(
        self, seen: Obs, before: Tensor, is_first: Tensor, noise: Tensor, state: ModelState | None = None
    ) -> Observed:
        """Go through L rows of N sequences, seen as `KeyEncoder.see` gives them; the rest as `RSSM.observe` has it."""
        return Observed(*self.rssm.observe(self.encoder(seen), before, is_first, noise, state))

    def reward_loss(self, feat: Tensor, reward: Tensor) -> Tensor:
        """-log p of the reward [...] that arrives with states [..., F]: [...]."""
        return self.number.loss(self.reward(feat), reward)

    def predict_reward(self, feat: Tensor) -> Tensor:
        """[..., F] -> the reward that arrives with the state [...], in the environment's unit."""
        return self.number.mean(self.reward(feat))

    def continue_loss(self, feat: Tensor, goes_on: Tensor) -> Tensor:
        """-log p of chances [...] in [0, 1] to go on, as the head tells them of states [..., F]; 0 without a head."""
        if self.goes_on is None:
            return torch.zeros_like(goes_on)
        return F.binary_cross_entropy_with_logits(self.predict_continue(feat), goes_on, reduction="none")

    def predict_continue(self, feat: Tensor) -> Tensor:
        """[..., F] -> logits [...] of the episode going on, of a model that has a head for it."""
        assert self.goes_on is not None, "use_continues=false"
        return self.goes_on(feat).squeeze(-1)
