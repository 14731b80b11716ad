"""Plan2Explore: Planning to Explore via Self-Supervised World Models. Sekar et al. 2020, arXiv:2005.05960.

The learner is that of a Dreamer; only the reward of a second actor and its ensemble are new.

Equations of the paper and the code that implements them:
    eq. 1-2, world model, actor and value    the Dreamer's file
    eq. 3, ensemble of one-step models       ensemble.Ensemble, Exploration.ensemble_loss
    eq. 4, disagreement                      ensemble.disagreement
    algorithm 1, exploration                 Exploration: the exploration actor maximizes the disagreement in
                                             imagination and collects the data; the task actor learns beside it
    algorithm 2, adaptation                  FineTuning, which starts from the networks of an exploration run

An imagined step with the state s and the action a has the reward D(s, a): how much the models disagree about its
outcome. The models learn from the recorded steps in the same form:

    t             0      1      2*     3                 * the episode ends at obs 2
    input         s0 a0  s1 a1  -      s3 a3             states of the world model, without gradient
    target        z1     z2     -      z4                next stochastic state; Dreamer V1: features of the next
                                                         observation

Differences from SheepRL's `p2e_dv1`, `p2e_dv2` and `p2e_dv3`:
    steps from the end of an episode to the next episode are not learned; V1 and V2 there pair the state with the action
    before it, as the authors' code for Dreamer V2 does; the reward of a step in V3 there is the disagreement at the
    state after the step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcore import protocols
from rlcore.algorithms.dreamer import agent as agents
from rlcore.algorithms.dreamer.agent import DreamerAgent, Explorer, WorldAgent
from rlcore.algorithms.dreamer.behavior import DreamerBehavior, make_optimizer
from rlcore.algorithms.dreamer.critic import Imagined, WeightedReward
from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from rlcore.algorithms.dreamer.dreamer_v2 import learner as dreamer_v2
from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from rlcore.algorithms.dreamer.learner import DreamerLearner, Segment, memory_and_plan
from rlcore.algorithms.dreamer.plan2explore import p2e_dv1, p2e_dv2, p2e_dv3
from rlcore.algorithms.dreamer.plan2explore.config import INTRINSIC
from rlcore.algorithms.dreamer.plan2explore.ensemble import Ensemble, disagreement
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_model import Distance
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import squared_distance, unit_normal_loss
from rlcore.functional.stats import LossTerms, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import EnvSpec
from rlcore.types import Context, Metrics, TrainingSchedule

ExplorationConfig = p2e_dv1.Exploration | p2e_dv2.Exploration | p2e_dv3.Exploration
FineTuningConfig = p2e_dv1.FineTuning | p2e_dv2.FineTuning | p2e_dv3.FineTuning
AnyConfig = ExplorationConfig | FineTuningConfig


class Exploration(DreamerLearner):
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


class FineTuning(DreamerLearner):
    """Learner of the fine-tuning phase: a Dreamer that starts from the networks of an exploration run.

    With `player.actor_type=exploration`, the exploration actor collects the data until learning starts.
    """

    config: FineTuningConfig
    agent: DreamerAgent

    def make_player(self, context: Context[FineTuningConfig], rng: torch.Generator) -> WorldAgent:
        """Return the agent that collects the data; its actor is a copy of one of the two actors."""
        convert = context.fabric.strategy.precision.convert_module
        self.actor_exploration: Any = context.fabric.to_device(convert(self.agent.make_actor(rng)))
        self.player = copy.deepcopy(self.actor_exploration)
        return self.agent.with_actor(self.player)

    def follow(self) -> None:
        """Copy the weights of the actor that now collects the data."""
        explores = self.updates == 0 and self.config.player.actor_type == "exploration"
        self.player.load_state_dict((self.actor_exploration if explores else self.agent.actor).state_dict())

    def sync_weights(self, player: Any) -> None:
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


class ExplorationV1(Exploration, dreamer_v1.Learner):
    """Exploration with Dreamer V1, whose models predict the features of the next observation."""

    def target_size(self) -> int:
        """Return the number of features of an observation."""
        return self.agent.world.encoder.output_size

    def targets(self, states: ModelState, batch: Segment) -> Tensor:
        """Return the features of the observation of each row, [L, N, D]."""
        encoder = self.agent.world.encoder
        return encoder(encoder.preprocess(batch.obs, 2))


class ExplorationV2(Exploration, dreamer_v2.Learner):
    """Exploration with Dreamer V2."""


class ExplorationV3(Exploration, dreamer_v3.Learner):
    """Exploration with Dreamer V3, whose exploration actor has one critic for each of `critics_exploration`."""

    distance: ClassVar[Distance] = staticmethod(squared_distance)


class FineTuningV1(FineTuning, dreamer_v1.Learner):
    """Fine-tuning with Dreamer V1."""


class FineTuningV2(FineTuning, dreamer_v2.Learner):
    """Fine-tuning with Dreamer V2."""


class FineTuningV3(FineTuning, dreamer_v3.Learner):
    """Fine-tuning with Dreamer V3."""


LEARNERS: dict[str, type[DreamerLearner]] = {
    "p2e_dv1_exploration": ExplorationV1,
    "p2e_dv1_finetuning": FineTuningV1,
    "p2e_dv2_exploration": ExplorationV2,
    "p2e_dv2_finetuning": FineTuningV2,
    "p2e_dv3_exploration": ExplorationV3,
    "p2e_dv3_finetuning": FineTuningV3,
}


def Agent(config: AnyConfig, spec: EnvSpec, distribution: str, rng: torch.Generator) -> DreamerAgent:  # noqa: N802 - named like the class of other algorithms
    """Return the agent of the algorithm: that of its Dreamer."""
    return LEARNERS[config.name].agent_class(config, spec, distribution, rng)


def make_behavior_policy(agent: WorldAgent, config: AnyConfig) -> WorldAgent | Explorer:
    """Return the policy that collects data; its actor has the form of the agent's actor, but its own weights."""
    return agents.make_behavior_policy(agent.with_actor(copy.deepcopy(agent.actor)), config)


def build(context: Context[AnyConfig]) -> tuple[DreamerLearner, Replay, TrainingSchedule]:
    """Build learner, replay buffer and training schedule; the seed (random stream `init`) determines the weights."""
    learner = LEARNERS[context.algo.name](context)
    stored = learner.agent.stored
    return learner, *memory_and_plan(context, stored, lead=1 if stored else 0)
