"""The parts of an on-policy actor-critic's learner, put together; mathematics are the algorithm's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.data.reward_scale import RewardScaler
from rlcore.data.steps import Outcomes
from rlcore.functional.returns import advantages
from rlcore.functional.stats import mean_metrics
from rlcore.nn.actor_critic import ActorCritic
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.types import Context, Metrics, Steps


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

    @torch.no_grad()
    def advantage(self, steps: Steps, step: Outcomes, last: Any) -> Tensor:
        """Advantages [T, B] of a rollout by the values that were told as it was collected.

        Args:
            steps: its rows [T, B].
            step: what its transitions brought, [T, B].
            last: the observation after the last row, as the agent sees it, [B, ...].

        Returns:
            [T, B].
        """
        config = self.config
        with self.autocast():
            _, last_value = self.agent(last)
        return advantages(step, steps.extras["value"], last_value, config.gamma, config.gae_lambda, config.gae_method)

    def average(self, logged: Sequence[Metrics], coefs: Mapping[str, float]) -> Metrics:
        """Averages over an update's steps, and what schedules gave."""
        shown = {f"Info/{name}": value for name, value in coefs.items() if name != "lr"}
        return mean_metrics(logged, self.ranks) | shown | {"Info/learning_rate": coefs["lr"]}

    def parts(self) -> dict[str, protocols.Part]:
        """The agent with its normaliser, the optimizer, how steps are computed, the statistics of rewards."""
        names = ("agent", "optimizer", "step", "reward_scaler")
        return {name: getattr(self, name) for name in names}
