"""Behavior: an actor and a critic that are trained in imagination for one reward.

A Dreamer learner has a world model and one behavior. A subclass can add further behaviors, for example an actor that is
rewarded for states on which an ensemble of models disagrees (Sekar et al. 2020, Plan2Explore, arXiv:2005.05960).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.config import DreamerConfig, TrainedDreamerConfig, TrainedGroup
from rlcore.algorithms.dreamer.critic import Critic, Reward, WeightedReward, join
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_model import WorldModel
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import ScalarHead
from rlcore.functional.stats import LossTerms, LossTermsAux, reduce_loss
from rlcore.optim.optimizer import Loss, Optimizer
from rlcore.types import Context, Metrics


class DreamerBehavior:
    """Behavior: actor, critic and optional target critic.

    Actor and critic are trained for one reward, on trajectories that the world model imagines. In Dreamer V3, an actor
    can maximize a weighted sum of rewards, with a critic for each.

    A subclass implements `predicted_reward`. There are two ways to train:
        each network has an optimizer (Dreamer V1 to V3): The subclass implements `actor_objective`. The loss of the
            actor passes three tensors to `critic_objective`: `feat`, `returns` and `weight` of the imagined states,
            [H, N, ...]; in Dreamer V1, H is the horizon minus 1. `train` takes the optimizer steps.
        an optimizer of the learner trains networks of the behavior together with the world model (Dreamer V3.5): The
            subclass overrides `make_optimizers` and `components`, and defines the losses that the learner adds to its
            own. `actor_objective`, `critic_objective` and `train` are not used.

    Args:
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).
        world: world model, which imagines the trajectories; it is not trained here.
        actor: actor that is trained.
        number: distribution of the values that the critic predicts.
        rng: CPU generator for the initial weights of the critic.
        reward: function of imagined trajectories that returns the rewards to maximize, in the shape of
            `predicted_reward`; None: the rewards that the world model predicts. Or several rewards, name -> reward.
        reads: modules that `reward` reads (see the argument `uses` of `rlcore.optim.optimizer.Optimizer`).
        name: suffix of the names of metrics and components; "" for the actor and critic of the agent.

    Attributes:
        config: config of the algorithm; a derived class annotates it with its own type.
        critics: the critics, one for each reward.
        suffix: suffix of the names of metrics; `name`, unless a learner changes it.
    """

    config: DreamerConfig
    critics: list[Critic]
    suffix: str

    def __init__(
        self,
        context: Context[DreamerConfig],
        world: WorldModel,
        actor: LatentActor,
        number: ScalarHead,
        rng: torch.Generator,
        reward: Reward | Mapping[str, WeightedReward] | None = None,
        reads: Sequence[nn.Module] = (),
        name: str = "",
    ) -> None:
        self.config = context.algo
        self.ranks, self.world, self.actor, self.number = context.ranks, world, actor, number
        self.name = self.suffix = name
        self.critics = list[Critic]()
        for key, goal in (reward if isinstance(reward, Mapping) else {"": WeightedReward(reward)}).items():
            network = self.make_critic(rng)
            self.critics.append(Critic(context, network, goal.reward or self.predicted_reward, goal, key))
        first = self.critics[0]
        self.critic, self.target, self.reward = first.network, first.target, first.reward
        targets = [module for critic in self.critics for module in critic.target_networks]
        self.make_optimizers(context, [*targets, *self.make_modules(context), *reads])

    def make_critic(self, rng: torch.Generator) -> Dense:
        """Create the network of a critic, with initial weights that are drawn from `rng`."""
        outputs, scale = self.number.outputs, self.critic_scale()
        return Dense(self.world.feat_size, self.config.critic.layers, rng, outputs, scale)

    def make_optimizers(self, context: Context[DreamerConfig], reads: Sequence[nn.Module]) -> None:
        """Create the optimizers of actor and critics.

        `reads` are modules that the loss of the actor reads, in addition to the world model and the critics.
        """
        config = cast(TrainedDreamerConfig, self.config)
        uses = [self.world, *(critic.network for critic in self.critics), *reads]
        self.actor_optimizer = make_optimizer(self.actor, self.actor_objective, config.actor, context, uses)
        for i, critic in enumerate(self.critics):
            loss = partial(self.critic_objective, critic=critic) if i else self.critic_objective
            critic.optimizer = make_optimizer(critic.network, loss, config.critic, context, critic.target_networks)
        self.critic_optimizer = self.critics[0].optimizer

    def make_modules(self, context: Context[DreamerConfig]) -> Sequence[nn.Module]:
        """Create and return further modules with buffers that the loss of the actor reads or updates."""
        return ()

    def critic_scale(self) -> float | None:
        """Return the initialization scale of the critic's output layer; see `dense.initialise_glorot`."""
        return 1.0

    @property
    def target_critic(self) -> nn.Module:
        """Network of the target critic; the algorithm must have one."""
        assert self.target is not None
        return self.target.module

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts for imagined trajectories, one for each λ-return."""
        raise NotImplementedError

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> LossTermsAux:
        """Compute the actor loss on trajectories imagined from the model states [L, N].

        `terminated` [L, N] is true if the episode terminated at the time step. The last element returned is the input
        of `critic_objective`: `feat`, `returns` and `weight` of the imagined states.
        """
        raise NotImplementedError

    def critic_objective(self, imagined: dict[str, Tensor], critic: Critic | None = None) -> LossTerms:
        """Compute the critic loss -w log p(R | feat) on imagined states.

        Args:
            imagined: features `feat` of the states, their returns R (`returns`), and their cumulative discounts w
                (`weight`).
            critic: critic to train; None: the first one. The base class supports one critic.

        Returns:
            Loss, count and means to log.
        """
        returns, weight = imagined["returns"], imagined["weight"]  # [H, L·N]
        assert weight.shape == returns.shape, (weight.shape, returns.shape)
        loss = (weight * self.number.loss(self.critic(imagined["feat"]), returns)).flatten()
        return reduce_loss(loss, torch.ones_like(loss), Loss__value_loss=loss)

    def train(self, states: ModelState, terminated: Tensor, tau: float, rng: Noise) -> Metrics:
        """Update target critic, actor and critic, in this order.

        Args:
            states: model states [L, N, ...] at which the imagined trajectories start.
            terminated: [L, N]; true if the episode terminated at the time step.
            tau: fraction τ of the update of the target critic.
            rng: noise for actions and states.

        Returns:
            Means to log, name -> [].
        """
        for critic in self.critics:
            if critic.target is not None:
                critic.target.update(critic.optimizer, tau)
        actor = self.actor_optimizer.minimize(states, terminated, rng)
        found, norms = self.suffixed(actor.metrics), self.suffixed({"Grads/actor": actor.norm})
        for critic in self.critics:
            trained = critic.optimizer.minimize(actor.aux)
            found |= self.suffixed(trained.metrics, critic)
            norms |= self.suffixed({"Grads/critic": trained.norm}, critic)
        return found | norms

    def measure(self, critic: Critic, reward: Tensor, value: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Return means to log about rewards, values and λ-returns of imagined trajectories, [H, N] each.

        Nothing is logged for the behavior of the agent.
        """
        if not self.name:
            return {}
        found = {f"Values_{self.name}/predicted_values": value, f"Values_{self.name}/lambda_values": returns}
        found |= {critic.metric: reward} if critic.metric else {}
        return {join(name, critic.key): x.detach().mean() for name, x in found.items()}

    def suffixed(self, found: Mapping[str, Tensor], critic: Critic | None = None) -> Metrics:
        """Add the suffixes of behavior and critic to the names of metrics, except those that `measure` returns."""
        parts, groups = (self.suffix, critic.key if critic else ""), ("Loss/", "Grads/", "Actor/", "Values/")
        return {join(k, *parts) if k.startswith(groups) else k: value for k, value in found.items()}

    def named(self, name: str) -> str:
        """Return the name of a component of this behavior: `name` with the suffix `_<self.name>`, if there is one."""
        return join(name, self.name)

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the components from which another run can start, except the actor if it is a part of the agent."""
        found: dict[str, protocols.Stateful] = {self.named("actor"): self.actor} if self.name else {}
        for critic in self.critics:
            found |= {join(self.named(name), critic.key): part for name, part in critic.networks().items()}
        return found

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: the networks and all optimizers."""
        optimizers: dict[str, protocols.Stateful] = {self.named("actor_optimizer"): self.actor_optimizer}
        for critic in self.critics:
            optimizers[join(self.named("critic_optimizer"), critic.key)] = critic.optimizer
        return self.networks() | optimizers


def make_optimizer(
    module: nn.Module,
    loss: Loss,
    group: TrainedGroup,
    context: Context[DreamerConfig],
    uses: Sequence[nn.Module],
) -> Optimizer:
    """Create the optimizer of a network from its config group, such as `algo.actor`.

    Args:
        module: network to train.
        loss: loss function (`rlcore.optim.optimizer.Loss`).
        group: config group with `optimizer` and `clip_gradients`.
        context: config, specs, devices and ranks of the run.
        uses: other modules that the loss reads.

    Returns:
        The optimizer.
    """
    rule = context.algo.update_rule(group.optimizer)
    return Optimizer(module, loss, rule, context, max_grad_norm=group.clip_gradients, uses=uses)
