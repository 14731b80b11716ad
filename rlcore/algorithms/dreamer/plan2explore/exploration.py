"""Exploration phase of Plan2Explore (arXiv:2005.05960, algorithm 1), with any Dreamer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlcore import protocols
from rlcore.algorithms.dreamer.agent import DreamerAgent, WorldAgent
from rlcore.algorithms.dreamer.behavior import DreamerBehavior, make_optimizer
from rlcore.algorithms.dreamer.critic import WeightedReward
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.plan2explore import p2e_dv1, p2e_dv2, p2e_dv3, p2e_dv3_5
from rlcore.algorithms.dreamer.plan2explore.config import INTRINSIC
from rlcore.algorithms.dreamer.plan2explore.ensemble import Ensemble, disagreement
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment
from rlcore.algorithms.dreamer.world_model import Distance
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import unit_normal_loss
from rlcore.functional.stats import LossTerms, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.types import Context, Metrics

ExplorationConfig = p2e_dv1.Exploration | p2e_dv2.Exploration | p2e_dv3.Exploration | p2e_dv3_5.Exploration


class ExplorationLearner(DreamerLearner):
    """Learner of the exploration phase: an ensemble, and a second actor that is rewarded for its disagreement.

    The heads for reward and continue learn from detached model states, and so do the critics that learn from replayed
    sequences (Dreamer V3.5). Therefore the task does not shape the world model.

    Attributes:
        config: config of the algorithm.
        agent: agent with the task actor, which is evaluated and registered.
        detached_heads: heads whose losses do not train the model states (`DreamerLearner.detached_heads`).
        distance: loss of one prediction of a model; it is summed over the models.
    """

    config: ExplorationConfig
    agent: DreamerAgent
    detached_heads: ClassVar[frozenset[str]] = frozenset({"reward", "continue", "critic"})
    distance: ClassVar[Distance] = staticmethod(unit_normal_loss)

    def target_size(self) -> int:
        """Return D, the size of the targets of the ensemble."""
        return self.agent.world.rssm.latent.size

    def targets(self, states: ModelState, batch: Segment) -> Tensor:
        """Return what the models predict about each row, [L, N, D]: the stochastic part of its model state."""
        return states.stoch

    def make_modules(self, context: Context[ExplorationConfig], rng: torch.Generator) -> Sequence[Optimizer]:
        """Create the ensemble, and return its optimizer."""
        config, world = context.algo.ensembles, self.agent.world
        inputs = world.feat_size + world.rssm.actions
        self.ensembles = Ensemble(config.n, inputs, self.target_size(), config.layers, rng, self.agent.make_mlp)
        self.ensemble_optimizer = make_optimizer(self.ensembles, self.ensemble_loss, config, context, [])
        return [self.ensemble_optimizer]

    def make_behaviors(self, context: Context[ExplorationConfig], rng: torch.Generator) -> list[DreamerBehavior]:
        """Create two behaviors: the task actor, which is the agent's, and the exploration actor with its critics."""
        (task,) = super().make_behaviors(context, rng)
        task.suffix = "task"
        world, number = self.agent.world, self.agent.number
        rewards = {
            name: WeightedReward(self.intrinsic_reward, weight, "Rewards/intrinsic")
            if kind == INTRINSIC
            else WeightedReward(None, weight)
            for name, (kind, weight) in context.algo.goals.items()
        }
        actor = self.agent.make_actor(rng)
        return [
            task,
            self.behavior_class(context, world, actor, number, rng, rewards, [self.ensembles], "exploration"),
        ]

    def make_player(self, context: Context[ExplorationConfig], rng: torch.Generator) -> WorldAgent:
        """Return an agent with the exploration actor, which collects the data."""
        return self.agent.with_actor(self.behaviors[1].actor)

    def intrinsic_reward(self, imagined: Imagined) -> Tensor:
        """Return the disagreement of the ensemble about the outcome of each imagined step, [H, N], times a factor."""
        return self.config.intrinsic_reward_multiplier * disagreement(
            self.ensembles(imagined.feat[:-1], imagined.taken)
        )

    def train_modules(self, states: ModelState, batch: Segment, rng: Noise) -> Metrics:
        """Train the ensemble on model states [L, N, ...] without gradient; return its loss and gradient norm."""
        with torch.no_grad():
            targets = self.targets(states, batch)
        found = self.ensemble_optimizer.minimize(states, batch.before, batch.is_first, targets)
        return found.metrics | {"Grads/ensemble": found.norm}

    def ensemble_loss(self, states: ModelState, before: Tensor, is_first: Tensor, targets: Tensor) -> LossTerms:
        """Compute the loss of the ensemble (arXiv:2005.05960, eq. 3): Σₖ -log N(e; μₖ(s, a), 1) of each recorded step.

        `before` [L, N, A'] contains the previous actions. Steps to the first row of an episode have the weight 0, and
        the mean is that of the other steps. (SheepRL learns all steps, so its mean is that of all steps.)
        """
        predicted = self.ensembles(states.feat[:-1], before[1:])  # [K, L-1, N, D]
        loss = type(self).distance(predicted, targets[1:].expand_as(predicted), 3).sum(0)  # [L-1, N]
        total, count, metrics = reduce_loss(loss.flatten(), ~is_first[1:].flatten(), Loss__ensemble_loss=loss.flatten())
        return total, count.clamp(min=1), metrics  # no step counts if each one leads to the first row of an episode

    @property
    def transferable_components(self) -> tuple[str, ...]:
        """Names of the components from which another run can start: also the ensemble."""
        return (*super().transferable_components, "ensembles")

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: also the ensemble and its optimizer."""
        return super().components() | {"ensembles": self.ensembles, "ensemble_optimizer": self.ensemble_optimizer}
