"""Critic of a behavior: it predicts the returns of one reward, with its target critic and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target
from rlcore.types import Context

Reward = Callable[[Imagined], Tensor]


class WeightedReward(NamedTuple):
    """Reward that an actor maximizes, with its weight.

    Attributes:
        reward: function of imagined trajectories that returns the rewards, in the shape of
            `DreamerBehavior.predicted_reward`; None: the rewards that the world model predicts.
        weight: weight of its advantages in the objective of the actor.
        metric: name under which the mean reward is logged; "" = it is not logged.
    """

    reward: Reward | None = None
    weight: float = 1.0
    metric: str = ""


class Critic:
    """Critic of a behavior: network, optional target critic, and optimizer.

    Args:
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).
        network: network of the critic.
        reward: function of imagined trajectories that returns the rewards.
        goal: weight of the reward, and the name under which it is logged.
        key: suffix of the names of metrics and components; "" if the behavior has one critic.

    Attributes:
        optimizer: optimizer of the network; the behavior creates it.
        task: True if the reward is that of the environment, False if it is a function of the behavior.
    """

    optimizer: Optimizer
    task: bool

    def __init__(
        self, context: Context[DreamerConfig], network: nn.Module, reward: Reward, goal: WeightedReward, key: str
    ) -> None:
        self.network, self.reward, self.weight, self.metric, self.key = network, reward, goal.weight, goal.metric, key
        self.task = goal.reward is None
        self.target = None if context.algo.critic.target_tau(0) is None else Target(network, context)

    @property
    def target_networks(self) -> list[nn.Module]:
        """Network of the target critic; [] if there is none."""
        return [] if self.target is None else [self.target.module]

    @property
    def target_network(self) -> nn.Module:
        """Network of the target critic; the algorithm must have one."""
        assert self.target is not None
        return self.target.module

    @property
    def returns(self) -> str:
        """Name of the returns of this critic among the results of the actor loss."""
        return join("returns", self.key)

    @property
    def advantage(self) -> str:
        """Name of the advantages of this critic among imagined steps (Dreamer V3.5)."""
        return join("advantage", self.key)

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the parts from which another run can start, by their names without the suffix of the critic."""
        own: dict[str, protocols.Stateful] = {"critic": self.network}
        return own if self.target is None else own | {"target_critic": self.target}


def join(*words: str) -> str:
    """Join the words that are not empty by underscores."""
    return "_".join(word for word in words if word)
