"""REINFORCE with a baseline. Williams 1992, "Simple statistical gradient-following algorithms", Machine Learning 8.

A custom algorithm in one file: config, agent, learner with its loss, and the function that builds them.

    cd examples/reinforce
    SHEPHERD_SEARCH_PATH=conf shepherd train exp=reinforce "plugins=[reinforce]"
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.algorithms import register
from rlcore.config.run import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.data.rollout import Rollout
from rlcore.data.steps import transitions
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.functional.returns import discounted_sum
from rlcore.functional.stats import reduce_loss
from rlcore.functional.tree import map_leaves
from rlcore.nn.encoder import flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import ActorConfig, KeysConfig, MLPConfig, check_keys
from rlcore.nn.policy_head import PolicyHead
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.step import Step
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, TrainingSchedule


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    name: str = arg("reinforce", "the algorithm", choices=("reinforce",))
    rollout_steps: int = arg(256, "T: rows per environment between updates", low=1)
    gamma: float = arg(0.99, "discount factor per step", above=0, high=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    actor: ActorConfig = arg(ActorConfig(), "MLP of the policy")
    critic: MLPConfig = arg(MLPConfig(), "MLP of the baseline")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-3), "optimizer of policy and baseline")

    @property
    def collect_length(self) -> int:
        return self.rollout_steps

    def check_spec(self, spec: EnvSpec) -> None:
        check_keys(spec, self.mlp_keys.encoder, ())


class Agent(nn.Module):
    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.spec, self.keys = spec, tuple(config.mlp_keys.encoder)
        size = sum(spec.obs[key].size for key in self.keys)
        self.actor, self.critic = MLP(size, config.actor, rng), MLP(size, config.critic, rng, outputs=1)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.to_env, self.from_env = self.head.to_env, self.head.from_env

    def forward(self, obs: dict[str, Tensor]) -> tuple[Policy, Tensor]:
        x = flatten(obs, self.spec, self.keys, 1)
        return self.head.policy(self.head(self.actor(x))), self.critic(x).squeeze(-1)

    def initial(self, batch_size: int) -> tuple[()]:
        return ()

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        policy, _ = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng))
        return (), action, {}


class Learner(protocols.Learner):
    def __init__(self, context: Context[Config]) -> None:
        self.config, self.updates = context.algo, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))
        self.agent = Agent(self.config, context.spec, context.config.distribution.type, rng)
        self.optimizer = Optimizer(self.agent, self.loss, self.config.optimizer, context, max_grad_norm=0.5)
        self.step = Step(self.gradient_step, [self.optimizer], [], context)

    def loss(self, obs: dict[str, Tensor], action: Tensor, returns: Tensor, weight: Tensor) -> Any:
        """Return the sum of weight · (-log π(a|s) (G - b(s)) + (b(s) - G)²) over N rows, sum of weights, metrics."""
        policy, baseline = self.agent(obs)
        of_policy = -policy.logprob(action) * (returns - baseline.detach())
        of_value = (baseline - returns).square()
        return reduce_loss(of_policy + of_value, weight, Loss__policy_loss=of_policy, Loss__value_loss=of_value)

    def gradient_step(self, *samples: Any) -> dict[str, Tensor]:
        output = self.optimizer.minimize(*samples)
        return output.metrics | {"Info/grad_norm": output.norm}

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, Any]:
        rows, step = batch.steps, transitions(batch)
        last = self.agent(batch.last.obs)[1].detach()
        reward = step.reward.clone()
        reward[-1] += self.config.gamma * last * (~step.done[-1]).float()  # estimated return after the rollout
        returns = discounted_sum(reward, self.config.gamma * (~step.done).float())
        self.updates += 1
        return self.step(*map_leaves(lambda x: x.flatten(0, 1), (rows.obs, rows.action, returns, step.weight)))

    def components(self) -> dict[str, protocols.Stateful]:
        return {"agent": self.agent, "optimizer": self.optimizer, "step": self.step}


def build(context: Context[Config]) -> tuple[Learner, Rollout, TrainingSchedule]:
    algo = context.algo
    return Learner(context), Rollout(), TrainingSchedule(algo.step_limit, algo.rollout_steps)


register("reinforce", sys.modules[__name__])
