"""Base class of the Dreamers' learners, which train on the sequences of `sequences.Segment`.

The losses are in the file of each algorithm.

A subclass can store model states with the rows (`DreamerLearner.initial_state`). The state that is stored with the row
before row 0 is then the state in which the sequence starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.algorithms.dreamer.agent import DreamerAgent, Explorer, WorldAgent, make_behavior_policy
from rlcore.algorithms.dreamer.behavior import DreamerBehavior, make_optimizer
from rlcore.algorithms.dreamer.config import DreamerConfig, TrainedDreamerConfig
from rlcore.algorithms.dreamer.latents import Distribution
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, segment_of
from rlcore.algorithms.dreamer.world_model import Distance
from rlcore.functional.noise import Noise
from rlcore.functional.stats import LossTermsAux, mean_metrics, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.types import Batch, Context, Metrics


class DreamerLearner(protocols.Learner):
    """Base class of Dreamer learners: a world model, and one or several behaviors.

    A behavior is an actor and a critic that are trained for one reward, on trajectories that the world model imagines.

    A subclass sets the two classes below and implements `model_loss`, the loss of the world model's optimizer. If one
    optimizer trains the world model together with other networks (Dreamer V3.5), the subclass overrides
    `make_optimizers`, `gradient_step` and `components` instead, and `model_loss` is not used.

    A subclass can override `make_behaviors` to train further actors, and `make_modules` and `train_modules` to train
    further networks on the model states, such as an ensemble.
    If its agent returns model states as extras, it can override `initial_state` and `updated_extras` to start sequences
    from stored states; see the arguments of `memory_and_plan`.

    Args:
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).

    Attributes:
        config: config of the algorithm; a derived class annotates it with its own type.
        agent: agent with the world model, an `agent_class`.
        agent_class: subclass of `DreamerAgent`; its arguments are config, spec, distribution and a torch.Generator.
        behavior_class: subclass of `DreamerBehavior`.
        detached_heads: heads of the world model ("observation", "reward", "continue") whose losses do not train the
            model states.
    """

    config: DreamerConfig
    agent: WorldAgent
    agent_class: ClassVar[Callable[..., DreamerAgent]]
    behavior_class: ClassVar[type[DreamerBehavior]]
    detached_heads: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, context: Context[DreamerConfig]) -> None:
        config = self.config = context.algo
        self.ranks, self.updates = context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent = self.agent_class(config, context.spec, context.config.distribution.type, rng)
        more = self.make_modules(context, rng)
        self.behaviors = self.make_behaviors(context, rng)
        policy = make_behavior_policy(self.make_player(context, rng), config)
        self.explorer = policy if isinstance(policy, Explorer) else None
        self.policy = policy
        targets = [critic.target for behavior in self.behaviors for critic in behavior.critics]
        optimizers = [*self.make_optimizers(context), *more]
        self.step = Step(self.gradient_step, optimizers, [each for each in targets if each is not None], context)

    def make_optimizers(self, context: Context[DreamerConfig]) -> list[Optimizer]:
        """Create the optimizer of the world model; return it and the optimizers of the behaviors."""
        group = cast(TrainedDreamerConfig, self.config).world_model
        self.world_optimizer = make_optimizer(self.agent.world, self.model_loss, group, context, [])
        found = [self.world_optimizer]
        for behavior in self.behaviors:
            found += [behavior.actor_optimizer, *(critic.optimizer for critic in behavior.critics)]
        return found

    def make_modules(self, context: Context[DreamerConfig], rng: torch.Generator) -> Sequence[Optimizer]:
        """Create networks that `train_modules` trains, and return their optimizers; the base class has none."""
        return ()

    def make_behaviors(self, context: Context[DreamerConfig], rng: torch.Generator) -> list[DreamerBehavior]:
        """Create the behaviors; `rng` initializes their critics.

        A behavior is an actor and a critic that are trained in imagination for one reward. The first one trains the
        actor of the agent.
        """
        world, actor, number = self.agent.world, self.agent.actor, self.agent.number
        return [self.behavior_class(context, world, actor, number, rng)]

    def make_player(self, context: Context[DreamerConfig], rng: torch.Generator) -> WorldAgent:
        """Return the agent that collects data: the learner's agent, or one with another actor."""
        return self.agent

    @property
    def transferable_components(self) -> tuple[str, ...]:
        """Names of the components from which another run can start: the agent, and the networks of the behaviors.

        A subclass may override this property, or set a class attribute of this name.
        """
        return ("agent", *(name for behavior in self.behaviors for name in behavior.networks()))

    @property
    def behavior(self) -> DreamerBehavior:
        """Actor and critic of the agent, with the code that trains them in imagination."""
        return self.behaviors[0]

    @property
    def behavior_policy(self) -> WorldAgent | Explorer:
        """Policy that selects actions during collection: the agent, with exploration noise if the config enables it."""
        return self.policy

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Take one gradient step of world model, actor and critic on sequences [L, N]; return the means to log."""
        tau = self.config.critic.target_tau(self.updates) or 0.0
        self.updates += 1
        segment = segment_of(batch.steps, self.agent.actor, self.initial_state(batch))
        metrics = self.step(segment, tau, rng=self.noise)
        if self.step.aux:
            self.write_back(batch, self.step.aux)
        found = mean_metrics([metrics], self.ranks)
        if self.explorer is not None:
            amount = self.config.actor.exploration(batch.policy_steps)
            self.explorer.amount.value = torch.full_like(self.explorer.amount.value, amount)
            found |= dict.fromkeys(self.config.amount_metrics, self.explorer.amount.value)
        return found

    def initial_state(self, batch: Batch) -> ModelState | None:
        """Return the stored model state [N, ...] in the first row of the sequences, or None if no states are stored.

        If a state is returned, the first row is only the start of the sequence, and the learner trains on the following
        rows. At rows with is_first = 1, the state is reset.
        """
        return None

    def updated_extras(self, states: ModelState) -> dict[str, Tensor]:
        """Return new values of the extras in the replay buffer, name -> [L, N, ...], from new model states."""
        return {}

    def write_back(self, batch: Batch, extras: Mapping[str, Tensor]) -> None:
        """Store new values [L, N, ...] of extras in the replay buffer; they belong to the last L rows of the batch."""
        stored = batch.steps.extras  # without names that the buffer does not have; `batch.write_back` refuses them
        old = {name: stored.get(name, value)[: -len(value)] for name, value in extras.items()}
        batch.write_back({name: torch.cat([old[name], value]) for name, value in extras.items()})

    def gradient_step(self, batch: Segment, tau: float, rng: Noise) -> tuple[Metrics, dict[str, Tensor]]:
        """Update the world model, further networks, and the behaviors, in this order.

        A behavior is an actor and a critic that are trained for one reward, on trajectories imagined from the model
        states. `tau` is the fraction τ of the update of the target critics. Return the means to log, and the tensors of
        `updated_extras`.
        """
        model = self.world_optimizer.minimize(batch, rng)
        states = ModelState(**model.aux)
        extras = self.updated_extras(states)
        found = model.metrics | self.train_modules(states, batch, rng)
        for behavior in self.behaviors:
            found |= behavior.train(states, batch.terminated, tau, rng)
        return found | {"Grads/world_model": model.norm}, extras

    def train_modules(self, states: ModelState, batch: Segment, rng: Noise) -> Metrics:
        """Train the networks of `make_modules` on model states [L, N, ...] without gradient; return means to log."""
        return {}

    def head_input(self, head: str, state: ModelState) -> Tensor:
        """Return the features [L, N, F] of model states as input of a head, detached if `detached_heads` names it."""
        return state.feat.detach() if head in self.detached_heads else state.feat

    def observe(
        self, batch: Segment, rng: Noise, distance: Distance
    ) -> tuple[ModelState, Distribution, Distribution, Tensor, Tensor]:
        """Infer the model states of a batch, and compute the losses of predicted observations and rewards.

        Args:
            batch: N sequences of L time steps.
            rng: noise for sampling the states.
            distance: function (prediction, target, number of leading dimensions) -> [L, N] that computes the loss of
                one observation key.

        Returns:
            States, priors and posteriors [L, N, ...], the loss of the observations [L, N], and the loss of the rewards
            [L, N].
        """
        world = self.agent.world
        noise = world.rssm.noise(rng, *batch.reward.shape)
        seen = world.encoder.preprocess(batch.obs, 2)
        state, prior, posterior = world.observe(seen, batch.before, batch.is_first, noise, batch.state)
        observation = world.decoder.loss(world.decoder(self.head_input("observation", state)), seen, 2, distance)
        return state, prior, posterior, observation, world.reward_loss(self.head_input("reward", state), batch.reward)

    @staticmethod
    def reduce_model_loss(
        loss: Tensor, terms: Mapping[str, Tensor], measures: Mapping[str, Tensor], state: ModelState
    ) -> LossTermsAux:
        """Reduce the loss of the world model to the results that an optimizer expects (`rlcore.optim.optimizer.Loss`).

        Args:
            loss: [L, N]; loss of each time step.
            terms: terms of the loss, name -> [L, N]; logged as `Loss/<name>_loss`.
            measures: entropies and KL of prior and posterior, name -> [L, N]; logged as `State/<name>`.
            state: model states [L, N, ...], from which `actor_objective` imagines trajectories.

        Returns:
            Sum of the losses [], number of time steps [], means to log, and model states by name, without gradient.
        """
        means = {"Loss__world_model_loss": loss} | {f"Loss__{name}_loss": term for name, term in terms.items()}
        means |= {f"State__{name}": measure for name, measure in measures.items()}
        logged = {name: value.flatten() for name, value in means.items()}
        found = reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), **logged)
        return *found, state.detach()._asdict()

    def model_loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the loss of the world model; the last element returned is the model states, name -> [L, N, ...]."""
        raise NotImplementedError

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: agent, critics, further actors, optimizers, `step`, and noise."""
        found: dict[str, protocols.Stateful] = {
            "agent": self.agent,
            "noise": self.noise,
            "step": self.step,
            "world_optimizer": self.world_optimizer,
        }
        for behavior in self.behaviors:
            own = behavior.components()
            assert not found.keys() & own.keys(), f"two behaviors are named {behavior.name!r}"
            found |= own
        if self.explorer is not None:
            found["exploration"] = self.explorer.amount
        return found
