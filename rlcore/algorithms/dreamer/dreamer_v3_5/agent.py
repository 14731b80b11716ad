"""Agent of Dreamer V3.5, and the form in which the replay buffer stores model states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.agent import DreamerAgent
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import initialise
from rlcore.algorithms.dreamer.dreamer_v3_5.networks import make_networks
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.latents import CategoricalLatent, Latent, one_hot
from rlcore.algorithms.dreamer.networks import Networks
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_keys import MLPSpec
from rlcore.functional.scalars import TwoHot
from rlcore.spec import ArraySpec, EnvSpec

STATES = ModelState._fields  # names of the extras in the replay buffer


class Agent(DreamerAgent):
    """Dreamer V3.5 agent, which returns its model state with each action, if the replay buffer stores model states."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        model = config.world_model
        latent = CategoricalLatent(model.stochastic_size, model.discrete_size, model.unimix)
        reward, value = (TwoHot(head.bins, "symexp") for head in (model.reward_model, config.critic))
        super().__init__(config, spec, distribution, rng, latent, reward, value, (None, None))
        self.latent, self.stores, self.outscale = latent, bool(config.replay_context), config.actor.outscale
        scales: dict[nn.Module, float] = dict.fromkeys(self.actor.heads, self.outscale)
        deter_proj, feature_proj, reward_output = (
            self.world.rssm.core.deter_proj,
            self.world.rssm.feature_proj,
            self.world.reward.output,
        )
        assert deter_proj is not None and reward_output is not None
        joint = deter_proj.in_features + feature_proj.in_features
        initialise(self, rng, scales | {reward_output: 0.0}, {deter_proj: joint, feature_proj: joint})

    def make_networks(self, config: DreamerConfig, latent: Latent) -> Networks:
        """Return the factories of the networks."""
        assert isinstance(config, Config)
        return make_networks(config, latent.size)

    def make_actor(self, rng: torch.Generator) -> LatentActor:
        """Return another actor of the same form, with new weights."""
        actor = super().make_actor(rng)
        initialise(actor, rng, dict.fromkeys(actor.heads, self.outscale))
        return actor

    def make_mlp(
        self, inputs: int, layers: MLPSpec, rng: torch.Generator, outputs: int, scale: float | None = 1.0
    ) -> Dense:
        """Create an MLP with the norm and the initialization of the algorithm; the arguments are those of `Dense`."""
        made = super().make_mlp(inputs, layers, rng, outputs, scale)
        assert made.output is not None
        initialise(made, rng, {made.output: 1.0 if scale is None else scale})
        return made

    def extras(self, state: ModelState) -> dict[str, Tensor]:
        """Return the model states [B, ...] in the form in which the replay buffer stores them (see `compress`)."""
        return self.compress(state) if self.stores else {}

    @property
    def stored(self) -> dict[str, ArraySpec]:
        """Shape and dtype of the extras of one environment in the replay buffer; empty if no states are stored."""
        specs = ArraySpec((self.world.rssm.sizes[0],), "float16"), ArraySpec((self.latent.variables,), self._classes)
        return dict(zip(STATES, specs, strict=True)) if self.stores else {}

    @property
    def _classes(self) -> str:
        return "uint8" if self.latent.classes <= 256 else "int64"

    def compress(self, state: ModelState) -> dict[str, Tensor]:
        """Return a model state [..., H], [..., Z] as float16 and as the classes of the latent variables, [..., S]."""
        classes = state.stoch.unflatten(-1, (self.latent.variables, self.latent.classes)).argmax(-1)
        return {"deter": state.deter.half(), "stoch": classes.to(getattr(torch, self._classes))}

    def expand(self, stored: Mapping[str, Tensor]) -> ModelState:
        """Return the model state that `compress` has stored."""
        return ModelState(stored["deter"].float(), one_hot(stored["stoch"].long(), self.latent.classes).flatten(-2))
