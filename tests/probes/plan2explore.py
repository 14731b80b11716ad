"""Plan2Explore (Sekar et al. 2020, arXiv:2005.05960) around any Dreamer, as the author of a plugin would write it.

A second behavior maximizes the disagreement of an ensemble that predicts the next stochastic state. It selects the
actions during collection; the behavior of the agent learns the task from the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.behavior import DreamerBehavior, make_optimizer
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.config.schema import arg
from rlcore.functional.noise import Noise
from rlcore.functional.stats import reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.types import Context, Metrics

MODELS = 3


class Ensemble(nn.Module):
    """Networks that predict the next stochastic state from features and action [..., F + A'] -> [K, ..., S]."""

    def __init__(self, make_model: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(make_model() for _ in range(MODELS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models])


@dataclass(frozen=True)
class EnsembleConfig:
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4, eps=1e-5), "optimizer of the ensemble")


def plan_to_explore(module: ModuleType, label: str) -> SimpleNamespace:
    """Return an algorithm: a Dreamer that explores.

    Args:
        module: module `learner` of a Dreamer.
        label: name of the new algorithm.
    """

    class Learner(module.Learner):
        detached_heads = frozenset({"reward", "continue"})

        def make_modules(self, context: Context, rng: torch.Generator) -> Sequence[Optimizer]:
            agent, config, rssm = self.agent, self.config, self.agent.world.rssm
            inputs, outputs = agent.world.feat_size + rssm.actions, rssm.sizes[1]
            self.ensemble = Ensemble(lambda: agent.make_mlp(inputs, config.critic.layers, rng, outputs))
            self.ensemble_optimizer = make_optimizer(self.ensemble, self.ensemble_loss, config.ensemble, context, [])
            return [self.ensemble_optimizer]

        def make_behaviors(self, context: Context, rng: torch.Generator) -> list[DreamerBehavior]:
            task, world, number = super().make_behaviors(context, rng), self.agent.world, self.agent.number
            actor = self.agent.make_actor(rng)
            more = {"reward": self.disagreement, "reads": [self.ensemble], "name": "exploration"}
            self.exploring = self.agent.with_actor(actor)
            return [*task, self.behavior_class(context, world, actor, number, rng, **more)]

        @property
        def behavior_policy(self) -> Any:
            return self.exploring

        def train_modules(self, states: ModelState, batch: Segment, rng: Noise) -> Metrics:
            found = self.ensemble_optimizer.minimize(states, batch.before, batch.is_first)
            return found.metrics | {"Grads/ensemble": found.norm}

        def ensemble_loss(self, states: ModelState, before: Tensor, is_first: Tensor) -> Any:
            predicted = self.ensemble(torch.cat([states.feat[:-1], before[1:]], -1))  # [K, L-1, N, S]
            loss = (predicted - states.stoch[1:]).square().sum(-1).mean(0).flatten()
            return reduce_loss(loss, (~is_first[1:]).to(loss).flatten(), Loss__ensemble_loss=loss)

        def disagreement(self, imagined: Imagined) -> Tensor:
            """Return the variance of the ensemble's predictions in every imagined step, averaged over the state."""
            action = self.agent.actor.flat(imagined.action)
            return self.ensemble(torch.cat([imagined.feat[:-1], action], -1)).var(0).mean(-1)

        def components(self) -> dict[str, Any]:
            return super().components() | {"ensemble": self.ensemble, "ensemble_optimizer": self.ensemble_optimizer}

    def build(context: Context) -> Any:
        learner = Learner(context)
        stored = learner.agent.stored  # model states, if the Dreamer stores them; sequences then start after one row
        return learner, *memory_and_plan(context, stored, lead=1 if stored else 0)

    @dataclass(frozen=True, kw_only=True)
    class Config(module.Config):
        name: str = arg(label, "name of the algorithm", choices=(label,))
        ensemble: EnsembleConfig = arg(EnsembleConfig(), "ensemble of one-step models")

    return SimpleNamespace(Config=Config, Agent=module.Agent, Learner=Learner, build=build, __doc__="Plan2Explore")
