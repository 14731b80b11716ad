"""Fine-tuning phase of Plan2Explore (arXiv:2005.05960, algorithm 2), with any Dreamer."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rlcore import protocols
from rlcore.algorithms.dreamer.agent import DreamerAgent, WorldAgent
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.plan2explore import p2e_dv1, p2e_dv2, p2e_dv3, p2e_dv3_5
from rlcore.types import Context

FineTuningConfig = p2e_dv1.FineTuning | p2e_dv2.FineTuning | p2e_dv3.FineTuning | p2e_dv3_5.FineTuning


class FineTuningLearner(DreamerLearner):
    """Learner of the fine-tuning phase: a Dreamer that starts from the networks of an exploration run.

    With `player.actor_type=exploration`, the exploration actor collects the data until learning starts.
    """

    config: FineTuningConfig
    agent: DreamerAgent

    def make_player(self, context: Context[FineTuningConfig], rng: torch.Generator) -> WorldAgent:
        """Return the agent that collects the data; its actor is a copy of one of the two actors."""
        convert = context.fabric.strategy.precision.convert_module
        actor = context.fabric.to_device(convert(self.agent.make_actor(rng)))
        assert isinstance(actor, LatentActor), type(actor)
        self.actor_exploration = actor
        self.player = copy.deepcopy(self.actor_exploration)
        self.follow()
        return self.agent.with_actor(self.player)

    def follow(self) -> None:
        """Copy the weights of the actor that now collects the data."""
        explores = self.updates == 0 and self.config.player.actor_type == "exploration"
        self.player.load_state_dict((self.actor_exploration if explores else self.agent.actor).state_dict())

    def sync_weights(self, player: nn.Module) -> None:
        """Copy the current weights to `player`, a copy of the behavior policy that collects data."""
        self.follow()
        super().sync_weights(player)

    @property
    def transferable_components(self) -> tuple[str, ...]:
        """Names of the components from which another run can start: also the exploration actor."""
        return (*super().transferable_components, "actor_exploration")

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: also the exploration actor, and the actor that collects the data."""
        return super().components() | {"actor_exploration": self.actor_exploration, "player": self.player}
