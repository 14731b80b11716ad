"""REINFORCE with a baseline. Williams 1992, "Simple statistical gradient-following algorithms", Machine Learning 8.

An algorithm of one's own, in one file: what it needs of a config, an agent, a loss and how they are put together.

    cd examples/reinforce
    SHEPHERD_SEARCH_PATH=conf shepherd train exp=reinforce plugins=[reinforce]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import streams, types
from rlcore.algorithms import register
from rlcore.config.algorithm import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.data.rollout import Rollout
from rlcore.data.steps import transitions
from rlcore.functional.noise import Noise
from rlcore.functional.returns import discounted_sum
from rlcore.nn.config import ActorConfig, KeysConfig, MLPConfig, check_keys
from rlcore.nn.encoder import flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import PolicyHead
from rlcore.optim.config import OptimizerConfig
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Plan


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    name: str = arg("reinforce", "the algorithm", choices=("reinforce",))
    rollout_steps: int = arg(256, "T: rows of every environment between updates", low=1)
    gamma: float = arg(0.99, "discount of one step", above=0, high=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    actor: ActorConfig = arg(ActorConfig(), "the policy's perceptron")
    critic: MLPConfig = arg(MLPConfig(), "the baseline's perceptron")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-3), "one for policy and baseline")

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

    def features(self, obs: dict[str, Tensor], lead: int = 1) -> Tensor:
        return flatten(obs, self.spec, self.keys, lead)

    def initial(self, batch_size: int) -> tuple[()]:
        return ()

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        policy = self.head.policy(self.head(self.actor(self.features(obs))))
        return (), policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng)), {}


class Learner(types.Learner):
    def __init__(self, context: Context) -> None:
        self.config, self.updates = context.config.algo, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))
        self.agent = Agent(self.config, context.spec, context.config.distribution.type, rng)
        self.optimizer = Optimizer(self.agent, self.loss, self.config.optimizer, context, max_grad_norm=0.5)

    def loss(self, features: Tensor, action: Tensor, returns: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, dict]:
        """-log π(a|s) (G - b(s)) + (b(s) - G)², summed over rows [N] of weight [N]; the weight; means for the log."""
        baseline = self.agent.critic(features).squeeze(-1)
        logprob = self.agent.head.policy(self.agent.head(self.agent.actor(features))).logprob(action)
        policy = -(logprob * (returns - baseline.detach())).dot(weight)
        value = (baseline - returns).square().dot(weight)
        sums, count = {"Loss/policy_loss": policy.detach(), "Loss/value_loss": value.detach()}, weight.sum()
        return policy + value, count, {name: summed / count for name, summed in sums.items()}

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, Any]:
        steps, step = batch.steps, transitions(batch)
        last = self.agent.critic(self.agent.features(batch.last.obs)).squeeze(-1).detach()
        reward = step.reward.clone()  # what comes after the last row is what the baseline expects
        reward[-1] += self.config.gamma * last * (~step.done[-1]).float()
        returns = discounted_sum(reward, self.config.gamma * (~step.done).float())
        columns = (self.agent.features(steps.obs, lead=2), steps.action, returns, step.weight)
        metrics = self.optimizer.accumulate(*(column.flatten(0, 1) for column in columns))
        self.updates += 1
        return metrics | {"Info/grad_norm": self.optimizer.apply()}

    def parts(self) -> dict[str, types.Part]:
        return {"agent": self.agent, "optimizer": self.optimizer}


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    config = context.config.algo
    return Learner(context), Rollout(), Plan(config.total_steps, config.rollout_steps)


register("reinforce", sys.modules[__name__])
