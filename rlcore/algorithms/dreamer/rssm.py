"""Recurrent state-space model (RSSM), which predicts the model state: a deterministic and a stochastic part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore.algorithms.dreamer.dense import glorot_linear
from rlcore.algorithms.dreamer.latents import Distribution, Latent
from rlcore.algorithms.dreamer.networks import DEFAULT, Networks
from rlcore.algorithms.dreamer.world_groups import WorldGroup
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.functional.scan import scan


class ModelState(NamedTuple):
    """State of the world model: deterministic part h [..., H] (`deter`), and stochastic part z [..., Z] (`stoch`)."""

    deter: Tensor
    stoch: Tensor

    @property
    def feat(self) -> Tensor:
        """Features of the state, [..., Z + H]: z and h, concatenated; input of prediction heads, actor and critic."""
        return torch.cat([self.stoch, self.deter], -1)

    def at(self, index: int | slice | tuple[int | slice | Tensor, ...]) -> ModelState:
        """Return the states at an index of the leading dimensions, for example one time step of [T, B, ...]."""
        return ModelState(self.deter[index], self.stoch[index])

    def detach(self) -> ModelState:
        """Return the state without gradient."""
        return ModelState(self.deter.detach(), self.stoch.detach())


class RSSMCell(nn.Module):
    """Layers of the recurrent state-space model (RSSM) that are computed one time step after the other.

    Args:
        latent: distribution of the stochastic part of the model state.
        config: config of the world model, with the sizes of the layers.
        actions: size of an action as a vector.
        observed: number of features of an observation; 0 if the posterior does not depend on the deterministic part of
            the state (decoupled).
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
        networks: factories of the networks.
    """

    def __init__(
        self,
        latent: Latent,
        config: WorldGroup,
        actions: int,
        observed: int,
        scale: float | None,
        rng: torch.Generator,
        networks: Networks = DEFAULT,
    ) -> None:
        super().__init__()
        recurrent, post = config.recurrent_model, config.posterior
        width = recurrent.recurrent_state_size
        self.inputs = networks.dense(latent.size + actions, recurrent.layers, rng)
        self.cell = networks.cell(self.inputs.output_size, width, recurrent.cell, rng)
        self.deter_proj: nn.Linear | None = None
        if observed:
            self.deter_proj = glorot_linear(width, post.units, rng, post.form.scale, bias=False, of=width + observed)
        self.norm = networks.norm(post.units, post.form.eps, post.act)
        self.output = glorot_linear(post.units, latent.parameters, rng, scale)

    def transition(self, state: ModelState, action: Tensor) -> Tensor:
        """Return the next deterministic part h, [N, H], after actions [N, A] in states [N, ...]."""
        return self.cell(self.inputs(torch.cat([state.stoch, action], -1)), state.deter)

    def posterior(self, deter: Tensor, seen: Tensor) -> Tensor:
        """Return the parameters of the posterior of z, [N, P].

        `deter` [N, H] is the deterministic part of the state. `seen` [N, hidden] is the linear function of the
        observation in the hidden layer. A linear function of `deter` is added to it, unless the model is decoupled.
        """
        if self.deter_proj is not None:
            seen = seen + to_float32(self.deter_proj(deter.to(self.deter_proj.weight.dtype)))
        made = self.norm(seen.to(self.output.weight.dtype))
        return to_float32(self.output(made))

    def forward(self, part: str, *inputs: ModelState | Tensor) -> Tensor:
        """Call the method named `part`, "transition" or "posterior"; `functional_call` can call only `forward`."""
        return getattr(self, part)(*inputs)


class CoreParameters(TypedDict):
    """Inputs of the loop over time in `RSSM.observe`: parameters of the `RSSMCell`, and the initial state."""

    core: dict[str, Tensor]
    begin: ModelState


class RSSM(nn.Module):
    """Recurrent state-space model (arXiv:2010.02193, eq. 1; arXiv:2301.04104v1, eq. 3).

        hₜ = f(hₜ₋₁, zₜ₋₁, aₜ₋₁)        zₜ ~ q(zₜ | hₜ, xₜ)        ẑₜ ~ p(ẑₜ | hₜ)

    q is the posterior of the stochastic part z, given the observation x; p is the prior. At the first time step of an
    episode, the previous action is ignored, and the previous state is the initial state (see `StateKeys.begin`).

    Everything that does not depend on the previous state is computed for all time steps at once, outside the loop over
    time. These are the priors, the linear function of the observations in the posterior's hidden layer, and, in a
    decoupled model (q does not depend on h), the posteriors.

    Args:
        latent: distribution of the stochastic part z.
        config: config of the world model.
        features: E; number of features of an observation.
        actions: A; size of an action as a vector.
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
        networks: factories of the networks.
    """

    def __init__(
        self,
        latent: Latent,
        config: WorldGroup,
        features: int,
        actions: int,
        scale: float | None,
        rng: torch.Generator,
        networks: Networks = DEFAULT,
    ) -> None:
        super().__init__()
        self.begin: Tensor | None
        self.latent = latent
        width, post = config.recurrent_model.recurrent_state_size, config.posterior
        self.decoupled, self.sizes, self.actions = config.decoupled, (width, latent.size), actions
        self.core = RSSMCell(latent, config, actions, 0 if self.decoupled else features, scale, rng, networks)
        of = features + (0 if self.decoupled else width)
        self.feature_proj = glorot_linear(features, post.units, rng, post.form.scale, post.form.bias, of)
        self.prior = networks.dense(width, config.prior, rng, latent.parameters, scale)
        if config.begin == "learned":
            self.begin = nn.Parameter(torch.zeros(width))
        else:
            self.register_buffer("begin", None if config.begin == "zeros" else torch.zeros(width))

    def initial(self) -> ModelState:
        """Return the state before the first time step of an episode: h [H], z [Z]."""
        if self.begin is None:
            like = to_float32(self.core.output.bias)
            return ModelState(*(like.new_zeros(size) for size in self.sizes))
        deter = to_float32(self.begin).tanh()
        return ModelState(deter, self.latent.mode(self.latent.of(self.prior(deter))).detach())

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Draw the noise from which z [*lead, Z] is sampled: [*lead, S], one number for each stochastic variable."""
        return self.latent.noise(rng, *lead)

    def observe(
        self, features: Tensor, prev_action: Tensor, is_first: Tensor, noise: Tensor, state: ModelState | None = None
    ) -> tuple[ModelState, Distribution, Distribution]:
        """Infer the model states of N sequences of L time steps from the observations.

        Args:
            features: [L, N, E]; features of the observations.
            prev_action: [L, N, A]; previous actions.
            is_first: [L, N] bool; true at the first time step of an episode, where state and previous action are reset.
            noise: [L, N, ...]; noise for sampling z, drawn by the method `noise`.
            state: [N, ...]; state before the first time step; None = the initial state of an episode.

        Returns:
            The state, the prior and the posterior of each time step; each is [L, N, ...].
        """
        xs = {"action": prev_action, "first": is_first.unsqueeze(-1), "seen": self._see(features), "noise": noise}
        posterior: Distribution | None = None
        if self.decoupled:
            posterior = self.latent.of(self.core.posterior(features, xs["seen"]))
            xs = {"action": prev_action, "first": xs["first"], "stoch": self.latent.sample(posterior, noise)}
        begin = self.initial()
        params: CoreParameters = {"core": dict(self.core.named_parameters()), "begin": begin}
        state = state or ModelState(*(part.detach().expand(prev_action.shape[1], -1) for part in begin))
        _, (states, found) = scan(self._step, state, xs, params)
        return states, self.latent.of(self.prior(states.deter)), found if posterior is None else posterior

    def obs_step(
        self, features: Tensor, prev_action: Tensor, is_first: Tensor, noise: Tensor | None, state: ModelState
    ) -> ModelState:
        """Infer the states [N, ...] of one time step from its observations and the previous states `state` [N, ...].

        z is sampled from the posterior with `noise`; if `noise` is None, z is the mode of the posterior. If `is_first`
        [N] is true, the previous state and `prev_action` are reset.
        """
        first, seen = is_first.unsqueeze(-1), self._see(features)
        deter = self._move(state, prev_action, first, self.initial(), self.core)
        posterior = self.latent.of(self.core.posterior(deter, seen))
        return ModelState(deter, self.latent.mode(posterior) if noise is None else self.latent.sample(posterior, noise))

    def _see(self, features: Tensor) -> Tensor:
        """Compute the linear function of observations in the posterior's hidden layer: [..., E] -> [..., hidden]."""
        return to_float32(self.feature_proj(features.to(self.feature_proj.weight.dtype)))

    @staticmethod
    def _move(
        state: ModelState, prev_action: Tensor, first: Tensor, begin: ModelState, core: Callable[..., Tensor]
    ) -> Tensor:
        """Return the next h [N, H]; if `first` [N, 1] is true, it starts from `begin` and a previous action of 0."""
        deter, stoch = (torch.where(first, new, old) for new, old in zip(begin, state, strict=True))
        return core("transition", ModelState(deter, stoch), prev_action.masked_fill(first, 0))

    def _step(
        self, state: ModelState, xs: dict[str, Tensor], params: CoreParameters
    ) -> tuple[ModelState, tuple[ModelState, Distribution | tuple[()]]]:
        def core(*inputs: object) -> Tensor:
            return functional_call(self.core, params["core"], inputs)

        deter = self._move(state, xs["action"], xs["first"], params["begin"], core)
        if self.decoupled:
            after = ModelState(deter, xs["stoch"])
            return after, (after, ())
        posterior = self.latent.of(core("posterior", deter, xs["seen"]))
        after = ModelState(deter, self.latent.sample(posterior, xs["noise"]))
        return after, (after, posterior)

    def img_step(self, state: ModelState, action: Tensor, noise: Tensor) -> ModelState:
        """Predict the states [N, ...] after actions [N, A] in states `state`, with z sampled from the prior."""
        deter = self.core.transition(state, action)
        return ModelState(deter, self.latent.sample(self.latent.of(self.prior(deter)), noise))

    def forward(self, state: ModelState, action: Tensor, noise: Tensor) -> ModelState:
        """Call `img_step`; `functional_call` can call only a method named `forward`."""
        return self.img_step(state, action, noise)
