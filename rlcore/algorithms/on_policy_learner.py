"""The parts of an on-policy actor-critic's learner, put together; mathematics are the algorithm's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.data.reward_scale import RewardScaler
from rlcore.nn.actor_critic import ActorCritic
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.types import Context, Metrics


class OnPolicyLearner(protocols.Learner):
    """An agent, one optimizer for all of it, its gradient step, and the statistics of rewards.

    Args:
        context: what the learner is built from.

    Attributes:
        agent_class: the class of the agent, made of config, spec, distribution and a torch.Generator.
    """

    agent_class: ClassVar[Any] = ActorCritic

    def __init__(self, context: Context) -> None:
        config = self.config = context.config.algo
        self.ranks, self.autocast, self.updates = context.ranks, context.fabric.autocast, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # on every rank the same
        self.agent = self.agent_class(config, context.spec, context.config.distribution.type, rng)
        how = {"max_grad_norm": config.max_grad_norm, "reduction": config.loss_reduction}
        self.optimizer = Optimizer(self.agent, self.loss, config.optimizer, context, **how)
        self.step = Step(self.gradient_step, [self.optimizer], [], context)
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip, self.ranks)

    def gradient_step(self, *inputs: Any) -> Metrics:
        """One step of the optimizer, and means for the log."""
        raise NotImplementedError

    def loss(self, batch: Any, coefs: Mapping[str, float]) -> tuple[Tensor, Tensor, Metrics]:
        """The sum of the loss over samples, their weight, and means for the log."""
        raise NotImplementedError

    def parts(self) -> dict[str, protocols.Part]:
        """The agent with its normaliser, the optimizer, how steps are computed, the statistics of rewards."""
        names = ("agent", "optimizer", "step", "reward_scaler")
        return {name: getattr(self, name) for name in names}
