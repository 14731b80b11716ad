"""Plan2Explore: Planning to Explore via Self-Supervised World Models. Sekar et al. 2020, arXiv:2005.05960.

The learner is that of a Dreamer; only the reward of a second actor and its ensemble are new.

Equations of the paper and the code that implements them:
    eq. 1-2, world model, actor and value    the Dreamer's file
    eq. 3, ensemble of one-step models       ensemble.Ensemble, exploration.ExplorationLearner.ensemble_loss
    eq. 4, disagreement                      ensemble.disagreement
    algorithm 1, exploration                 exploration.ExplorationLearner: the exploration actor maximizes the
                                             disagreement in imagination and collects the data; the task actor learns
                                             from the same data
    algorithm 2, adaptation                  fine_tuning.FineTuningLearner, which starts from the networks of an
                                             exploration run

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
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.algorithms.dreamer import agent as agents
from rlcore.algorithms.dreamer.agent import DreamerAgent, Explorer, WorldAgent
from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from rlcore.algorithms.dreamer.dreamer_v2 import learner as dreamer_v2
from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from rlcore.algorithms.dreamer.dreamer_v3_5 import learner as dreamer_v3_5
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.plan2explore.exploration import ExplorationConfig, ExplorationLearner
from rlcore.algorithms.dreamer.plan2explore.fine_tuning import FineTuningConfig, FineTuningLearner
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.algorithms.dreamer.world_model import Distance
from rlcore.data.replay import Replay
from rlcore.functional.scalars import squared_distance
from rlcore.spec import EnvSpec
from rlcore.types import Context, TrainingSchedule

AnyConfig = ExplorationConfig | FineTuningConfig


class ExplorationV1(ExplorationLearner, dreamer_v1.Learner):
    """Exploration with Dreamer V1, whose models predict the features of the next observation."""

    def target_size(self) -> int:
        """Return the number of features of an observation."""
        return self.agent.world.encoder.output_size

    def targets(self, states: ModelState, batch: Segment) -> Tensor:
        """Return the features of the observation of each row, [L, N, D]."""
        encoder = self.agent.world.encoder
        return encoder(encoder.preprocess(batch.obs, 2))


class ExplorationV2(ExplorationLearner, dreamer_v2.Learner):
    """Exploration with Dreamer V2."""


class ExplorationV3(ExplorationLearner, dreamer_v3.Learner):
    """Exploration with Dreamer V3, whose exploration actor has one critic for each of `critics_exploration`."""

    distance: ClassVar[Distance] = staticmethod(squared_distance)


class ExplorationV35(ExplorationLearner, dreamer_v3_5.Learner):
    """Exploration with Dreamer V3.5; its critics also learn from replayed sequences.

    The reward of a recorded step is the reward of the environment, or the disagreement about the step.
    """

    agent: dreamer_v3_5.Agent
    distance: ClassVar[Distance] = staticmethod(squared_distance)


class FineTuningV1(FineTuningLearner, dreamer_v1.Learner):
    """Fine-tuning with Dreamer V1."""


class FineTuningV2(FineTuningLearner, dreamer_v2.Learner):
    """Fine-tuning with Dreamer V2."""


class FineTuningV3(FineTuningLearner, dreamer_v3.Learner):
    """Fine-tuning with Dreamer V3."""


class FineTuningV35(FineTuningLearner, dreamer_v3_5.Learner):
    """Fine-tuning with Dreamer V3.5."""

    agent: dreamer_v3_5.Agent


LEARNERS: dict[str, type[DreamerLearner]] = {
    "p2e_dv1_exploration": ExplorationV1,
    "p2e_dv1_finetuning": FineTuningV1,
    "p2e_dv2_exploration": ExplorationV2,
    "p2e_dv2_finetuning": FineTuningV2,
    "p2e_dv3_exploration": ExplorationV3,
    "p2e_dv3_finetuning": FineTuningV3,
    "p2e_dv3_5_exploration": ExplorationV35,
    "p2e_dv3_5_finetuning": FineTuningV35,
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
