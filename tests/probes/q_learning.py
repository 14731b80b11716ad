"""Twin Q-learning from a replay buffer: off-policy, random prefill, two losses, a target network, a carry.

It is not part of the product. It stands for future off-policy algorithms: they need the same from the loop, from
checkpoints, from ranks and from conformance.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.config.run import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.data.steps import shift, transitions
from rlcore.functional.noise import Noise
from rlcore.nn.encoder import flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import KeysConfig, MLPConfig, check_keys
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, TrainingSchedule


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    name: str = arg("q_learning", "the algorithm", choices=("q_learning",))
    learning_starts: int = arg(64, "policy steps at random", low=0)
    replay_ratio: float = arg(0.5, "gradient steps a policy step", above=0)
    size: int = arg(40, "rows of every environment that are remembered", low=1)
    batch_size: int = arg(16, "N", low=1)
    epsilon: float = arg(0.1, "share of random actions", low=0, high=1)
    gamma: float = arg(0.9, "discount", low=0, high=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "observation keys")
    critic: MLPConfig = arg(MLPConfig(), "a Q network")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-3), "of each")

    @property
    def collect_length(self) -> int:
        return 4

    def check_spec(self, spec: EnvSpec) -> None:
        check_keys(spec, self.mlp_keys.encoder, ())


class Agent(nn.Module):
    """Q of each of A actions, the mean of two; the carry counts the rows of an episode, only for tests."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.spec, self.keys, self.epsilon = spec, tuple(config.mlp_keys.encoder), config.epsilon
        self.count, self.start = spec.action.nvec[0], spec.action.start[0]
        size = sum(spec.obs[key].size for key in self.keys)
        self.first, self.second = (MLP(size, config.critic, rng, outputs=self.count) for _ in range(2))

    def features(self, obs: dict[str, Tensor], lead: int = 1) -> Tensor:
        return flatten(obs, self.spec, self.keys, lead)

    def initial(self, batch_size: int) -> dict[str, Any]:
        return {"age": (torch.zeros(batch_size, 1),)}

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        x = self.features(obs)
        action = (self.first(x) + self.second(x)).argmax(-1, keepdim=True)
        if not greedy:
            assert rng is not None
            draws = rng.uniform(len(x), 2)
            action = torch.where(draws[:, :1] < self.epsilon, (draws[:, 1:] * self.count).long(), action)
        age = torch.where(is_first[:, None], 0.0, carry["age"][0]) + 1
        return {"age": (age,)}, action, {}

    def to_env(self, action: Tensor) -> Tensor:
        return action[:, 0] + self.start

    def from_env(self, action: Tensor) -> Tensor:
        return action[:, None] - self.start


class Learner(protocols.Learner):
    def __init__(self, context: Context) -> None:
        config = self.config = context.algo
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))
        self.agent, self.updates = Agent(config, context.spec, context.config.distribution.type, rng), 0
        self.target = copy.deepcopy(self.agent)
        uses = (self.target,)
        self.first = Optimizer(self.agent.first, self.first_loss, config.optimizer, context, uses=uses)
        self.second = Optimizer(self.agent.second, self.second_loss, config.optimizer, context, uses=uses)

    def first_loss(self, *columns: Tensor) -> Any:
        return self._loss(self.agent.first, "first", *columns)

    def second_loss(self, *columns: Tensor) -> Any:
        return self._loss(self.agent.second, "second", *columns)

    def _loss(
        self, critic: nn.Module, name: str, x: Tensor, a: Tensor, r: Tensor, discount: Tensor, then: Tensor
    ) -> Any:
        best = torch.minimum(self.target.first(then), self.target.second(then)).amax(-1)
        loss = (critic(x).gather(-1, a)[:, 0] - (r + discount * best)).square()
        return loss.sum(), torch.tensor(float(len(r))), {f"Loss/{name}": loss.detach().mean()}

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, Any]:
        step, x = transitions(batch), self.agent.features(batch.steps.obs, lead=2)
        then = shift(x, self.agent.features(batch.last.obs))
        discount = self.config.gamma * (~step.terminated).float()
        columns = [c.flatten(0, 1) for c in (x, batch.steps.action, step.reward, discount, then)]
        metrics = self.first.accumulate(*columns) | self.second.accumulate(*columns)
        self.first.apply(), self.second.apply()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.agent.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        self.updates += 2
        return metrics

    def components(self) -> dict[str, protocols.Stateful]:
        return {name: getattr(self, name) for name in ("agent", "target", "first", "second")}


def build(context: Context) -> tuple[Learner, Replay, TrainingSchedule]:
    config: Config = context.algo
    starts = config.learning_starts
    replay = Replay(
        context,
        Transitions(),
        size=config.size,
        batch_size=config.batch_size,
        ratio=config.replay_ratio,
        starts=starts,
    )
    return Learner(context), replay, TrainingSchedule(config.step_limit, config.collect_length, starts)
