"""Base class of on-policy learners; each algorithm defines its losses in a derived class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.data.reward_scale import RewardScaler
from rlcore.data.steps import TransitionTargets
from rlcore.functional.returns import advantages
from rlcore.functional.stats import LossTerms, mean_metrics
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.types import Context, Metrics, Trajectory


class OnPolicyLearner(protocols.Learner):
    """Base class of on-policy learners: one agent, one optimizer, and running statistics that scale the rewards.

    A derived class implements `update`, `gradient_step` and `loss`.

    Args:
        context: config, environment spec, devices and ranks of the run.

    Attributes:
        agent_class: class of the agent, constructed from config, environment spec, `distribution.type` and a
            torch.Generator.
    """

    agent_class: ClassVar[type[ActorCritic]] = ActorCritic
    config: OnPolicyConfig
    agent: ActorCritic

    def __init__(self, context: Context[OnPolicyConfig]) -> None:
        config = self.config = context.algo
        self.ranks, self.autocast, self.updates = context.ranks, context.fabric.autocast, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent = self.agent_class(config, context.spec, context.config.distribution.type, rng)
        self.optimizer = Optimizer(
            self.agent,
            self.loss,
            config.optimizer,
            context,
            max_grad_norm=config.max_grad_norm,
            reduction=config.loss_reduction,
        )
        self.step = Step(self.gradient_step, [self.optimizer], [], context)
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip, self.ranks)

    gradient_step: Callable[..., Metrics]  # takes one optimizer step; returns the means to log, name -> []
    loss: Callable[..., LossTerms]  # loss function of the optimizer

    @torch.no_grad()
    def advantage(self, steps: Trajectory, step: TransitionTargets, last: object) -> Tensor:
        """Compute the advantages of a rollout from the values predicted during collection.

        Args:
            steps: rows (time steps) of the rollout, [T, B].
            step: rewards and ends of episodes for the transitions t → t+1 of the rollout, [T, B].
            last: input of the agent at time step T, the one after the last row, [B, ...].

        Returns:
            Advantages, [T, B].
        """
        config = self.config
        with self.autocast():
            _, last_value = self.agent(last)
        return advantages(step, steps.extras["value"], last_value, config.gamma, config.gae_lambda, config.gae_method)

    def average(self, logged: Sequence[Metrics], coefs: Mapping[str, float]) -> Metrics:
        """Return the metrics of an update.

        `logged` contains the means of each gradient step; they are averaged over the gradient steps and ranks. The
        current values of the coefficients `coefs`, such as the learning rate, are added.
        """
        shown = {f"Info/{name}": value for name, value in coefs.items() if name != "lr"}
        return mean_metrics(logged, self.ranks) | shown | {"Info/learning_rate": coefs["lr"]}

    def components(self) -> dict[str, protocols.Stateful]:
        """Return all components that are saved in a checkpoint: agent, optimizer, step, and reward statistics."""
        names = ("agent", "optimizer", "step", "reward_scaler")
        return {name: getattr(self, name) for name in names}
