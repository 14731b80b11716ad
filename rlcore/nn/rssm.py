"""Recurrent state-space model: what is remembered of an episode, in a deterministic and a stochastic part."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from rlcore.compiled.scan import scan
from rlcore.functional import latents
from rlcore.functional.noise import Noise
from rlcore.functional.precision import widen
from rlcore.nn.dense import Dense, Norm, cell, glorot_linear
from rlcore.nn.world_keys import WorldKeys


class ModelState(NamedTuple):
    """State of the model: deter h [..., H], stoch z laid flat [..., Z]."""

    deter: Tensor
    stoch: Tensor

    @property
    def feat(self) -> Tensor:
        """[z, h], [..., Z + H]: what heads and actor see."""
        return torch.cat([self.stoch, self.deter], -1)

    def at(self, index: Any) -> ModelState:
        """Some of several states, by an index into what comes before their sizes: of [T, B, ...] a row, say."""
        return ModelState(self.deter[index], self.stoch[index])

    def detach(self) -> ModelState:
        """The state without its gradient."""
        return ModelState(self.deter.detach(), self.stoch.detach())


class Latent(Protocol):
    """Form of the stochastic part: what a network's output says of it, and how it is drawn."""

    size: int  # Z, numbers of z
    parameters: int  # P, numbers that a network gives for a distribution

    def of(self, parameters: Tensor, /) -> Any:
        """The distribution that a network's output [..., P] stands for: nested tensors [..., ...]."""
        ...

    def noise(self, rng: Noise, /, *lead: int) -> Tensor:
        """Noise for one `sample`, [*lead, S]."""
        ...

    def sample(self, distribution: Any, noise: Tensor, /) -> Tensor:
        """z [..., Z], with a gradient to the distribution."""
        ...

    def mode(self, distribution: Any, /) -> Tensor:
        """The most likely z [..., Z]."""
        ...


class Gaussian(NamedTuple):
    """Independent normals: means and stds [..., S] each."""

    mean: Tensor
    std: Tensor


class GaussianLatent:
    """Stochastic part of S independent normals, of std softplus(s) + σ_min for a network's s (arXiv:1912.01603's code).

    Args:
        variables: S.
        min_std: σ_min.
    """

    def __init__(self, variables: int, min_std: float) -> None:
        self.size, self.parameters, self.min_std = variables, 2 * variables, min_std

    def of(self, parameters: Tensor) -> Gaussian:
        """The distribution that a network's output [..., 2 S], means before the rest, stands for."""
        mean, spread = parameters.chunk(2, -1)
        return Gaussian(mean, F.softplus(spread) + self.min_std)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Noise for one `sample`, [*lead, S]."""
        return rng.normal(*lead, self.size)

    def sample(self, distribution: Gaussian, noise: Tensor) -> Tensor:
        """Normals [..., S] -> z [..., S], with the gradient of mean and std."""
        return torch.addcmul(distribution.mean, distribution.std, noise)

    def mode(self, distribution: Gaussian) -> Tensor:
        """Normals [..., S] -> z [..., S]: the mean."""
        return distribution.mean


class CategoricalLatent:
    """Stochastic part of S categorical variables of K classes: its distributions are log-probabilities [..., S, K].

    Args:
        variables: S.
        classes: K.
        unimix: share of a uniform distribution in each.
    """

    def __init__(self, variables: int, classes: int, unimix: float) -> None:
        self.variables, self.classes, self.unimix = variables, classes, unimix
        self.size = self.parameters = variables * classes  # Z, and numbers that a network gives for a distribution

    def of(self, parameters: Tensor) -> Tensor:
        """The distribution that a network's output [..., S·K] stands for."""
        return latents.unimix(parameters.unflatten(-1, (self.variables, self.classes)), self.unimix)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Noise for one `sample`, [*lead, S]."""
        return rng.uniform(*lead, self.variables)

    def sample(self, distribution: Tensor, noise: Tensor) -> Tensor:
        """[..., S, K] -> z [..., S·K], with the gradient of the probabilities."""
        return latents.sample_one_hot(distribution, noise).flatten(-2)

    def mode(self, distribution: Tensor) -> Tensor:
        """[..., S, K] -> z [..., S·K], without gradient."""
        return latents.one_hot(distribution.argmax(-1), self.classes).flatten(-2)


class Core(nn.Module):
    """One step of the model: what a loop over time computes again and again.

    Args:
        latent: form of the stochastic part.
        config: sizes.
        actions: numbers of an action laid flat.
        observed: features of an observation; 0: the posterior does not see the deterministic part either (decoupled).
        scale: of output weights, as `rlcore.nn.dense.initialise_glorot` has it.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self,
        latent: Latent,
        config: WorldKeys,
        actions: int,
        observed: int,
        scale: float | None,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        recurrent, post = config.recurrent_model, config.representation_model.layers
        width = recurrent.recurrent_state_size
        self.inputs = Dense(latent.size + actions, recurrent.layers, rng)
        self.cell = cell(self.inputs.output_size, width, recurrent.cell, rng)
        self.of_deter: nn.Linear | None = None
        if observed:
            self.of_deter = glorot_linear(width, post.units, rng, post.form.scale, bias=False, of=width + observed)
        self.norm = Norm(post.units, post.form.eps, post.act)
        self.output = glorot_linear(post.units, latent.parameters, rng, scale)

    def move(self, state: ModelState, action: Tensor) -> Tensor:
        """h after an action: state [N, ...], action [N, A] -> [N, H]."""
        return self.cell(self.inputs(torch.cat([state.stoch, action], -1)), state.deter)

    def posterior(self, deter: Tensor, seen: Tensor) -> Tensor:
        """Parameters of the posterior [N, P] of h [N, H] and the observation's part of the first layer [N, hidden]."""
        if self.of_deter is not None:
            seen = seen + widen(self.of_deter(deter.to(self.of_deter.weight.dtype)))
        made = self.norm(seen.to(self.output.weight.dtype))
        return widen(self.output(made))

    def forward(self, part: str, *inputs: Any) -> Any:
        """Call `move` or `posterior` by its name: `functional_call` calls `forward` alone."""
        return getattr(self, part)(*inputs)


class RSSM(nn.Module):
    """Recurrent state-space model (arXiv:2010.02193, eq. 1; arXiv:2301.04104v1, eq. 3).

        h = f(h, z, a)        z ~ q(z | h, x)        ẑ ~ p(ẑ | h)

    A row that opens an episode finds no action before it, and the state of a start: zeros, or of h tanh of a parameter
    and of z its prior's mode. Batched work stands outside of the loop over time: the observation's part of the
    posterior's first layer, the priors, and, decoupled, the posteriors.

    Args:
        latent: form of the stochastic part.
        config: of the world model.
        features: E, of an observation.
        actions: A, numbers of an action laid flat.
        scale: of output weights, as `rlcore.nn.dense.initialise_glorot` has it.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self,
        latent: Latent,
        config: WorldKeys,
        features: int,
        actions: int,
        scale: float | None,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.begin: Tensor | None
        self.latent = latent
        width, post = config.recurrent_model.recurrent_state_size, config.representation_model.layers
        self.decoupled, self.sizes, self.actions = config.decoupled, (width, latent.size), actions
        self.core = Core(latent, config, actions, 0 if self.decoupled else features, scale, rng)
        of = features + (0 if self.decoupled else width)
        self.of_features = glorot_linear(features, post.units, rng, post.form.scale, post.form.bias, of)
        self.prior = Dense(width, config.transition_model.layers, rng, latent.parameters, scale)
        if config.begin == "learned":
            self.begin = nn.Parameter(torch.zeros(width))
        else:
            self.register_buffer("begin", None if config.begin == "zeros" else torch.zeros(width))

    def initial(self) -> ModelState:
        """State before an episode's first row: h [H], z [Z]."""
        if self.begin is None:
            like = widen(self.core.output.bias)
            return ModelState(*(like.new_zeros(size) for size in self.sizes))
        deter = widen(self.begin).tanh()
        return ModelState(deter, self.latent.mode(self.latent.of(self.prior(deter))).detach())

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Noise for sampling z [*lead, Z]."""
        return self.latent.noise(rng, *lead)

    def observe(
        self, features: Tensor, before: Tensor, is_first: Tensor, noise: Tensor, state: ModelState | None = None
    ) -> tuple[ModelState, Any, Any]:
        """Go through L rows of N sequences.

        Args:
            features: [L, N, E] of the observations.
            before: [L, N, A], the action taken before each of them.
            is_first: [L, N] bool; such a row forgets state and action before it.
            noise: [L, N, ...], as `noise` gives it.
            state: before the first row, [N, ...]; None: that of an episode's start.

        Returns:
            The states after each row [L, N, ...], and their priors and posteriors [L, N, ...].
        """
        xs = {"action": before, "first": is_first.unsqueeze(-1), "seen": self._see(features), "noise": noise}
        posterior: Any = None
        if self.decoupled:
            posterior = self.latent.of(self.core.posterior(features, xs["seen"]))
            xs = {"action": before, "first": xs["first"], "stoch": self.latent.sample(posterior, noise)}
        begin = self.initial()
        params = {"core": dict(self.core.named_parameters()), "begin": begin}
        state = state or ModelState(*(part.detach().expand(before.shape[1], -1) for part in begin))
        _, (states, found) = scan(self._step, state, xs, params)
        return states, self.latent.of(self.prior(states.deter)), found if posterior is None else posterior

    def follow(
        self, features: Tensor, before: Tensor, is_first: Tensor, noise: Tensor | None, state: ModelState
    ) -> ModelState:
        """State after one row, as `observe` finds it: all [N, ...]; without noise, of the most likely z."""
        first, seen = is_first.unsqueeze(-1), self._see(features)
        deter = self._move(state, before, first, self.initial(), self.core)
        posterior = self.latent.of(self.core.posterior(deter, seen))
        return ModelState(deter, self.latent.mode(posterior) if noise is None else self.latent.sample(posterior, noise))

    def _see(self, features: Tensor) -> Tensor:
        """The observation's part of the posterior's first layer, [..., E] -> [..., hidden]."""
        return widen(self.of_features(features.to(self.of_features.weight.dtype)))

    @staticmethod
    def _move(state: ModelState, before: Tensor, first: Tensor, begin: ModelState, core: Any) -> Tensor:
        """h of the next row: of the state and the action before it, or of an episode's start."""
        deter, stoch = (torch.where(first, new, old) for new, old in zip(begin, state, strict=True))
        return core("move", ModelState(deter, stoch), before.masked_fill(first, 0))

    def _step(self, state: ModelState, xs: dict[str, Tensor], params: dict[str, Any]) -> tuple[ModelState, Any]:
        def core(*inputs: Any) -> Tensor:
            return functional_call(self.core, params["core"], inputs)

        deter = self._move(state, xs["action"], xs["first"], params["begin"], core)
        if self.decoupled:
            after = ModelState(deter, xs["stoch"])
            return after, (after, ())
        posterior = self.latent.of(core("posterior", deter, xs["seen"]))
        after = ModelState(deter, self.latent.sample(posterior, xs["noise"]))
        return after, (after, posterior)

    def imagine(self, state: ModelState, action: Tensor, noise: Tensor) -> ModelState:
        """State after an action, of which nothing was seen: [N, ...], [N, A] -> [N, ...]."""
        deter = self.core.move(state, action)
        return ModelState(deter, self.latent.sample(self.latent.of(self.prior(deter)), noise))

    def forward(self, state: ModelState, action: Tensor, noise: Tensor) -> ModelState:
        """`imagine`, for `functional_call`."""
        return self.imagine(state, action, noise)
