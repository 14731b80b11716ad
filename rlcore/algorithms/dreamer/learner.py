"""Base classes of the Dreamers' agents and learners, and the batch format `Segment`.

The losses are in the file of each algorithm. Row t of a sequence contains the observation obs[t], and the previous
action, the reward and the end of the step that led to this observation:

    t             0      1      2*     3      4          * the episode ends at obs 2, and another one starts at obs 3
    is_first      1      0      0      1      0          always 1 at row 0, because model states are not stored
    before        -      a0     a1     -      a0'        previous action; not used if is_first is 1
    reward        0      r1     r2     0      r1'        target of the reward head at state t
    terminated    0      0      1      0      0          0 at row 2 too if the episode is truncated

The model state is reset at rows with is_first = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.explorer import Explorer
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.rssm import Latent, ModelState
from rlcore.algorithms.dreamer.world_agent import WorldAgent
from rlcore.algorithms.dreamer.world_model import Distance, ScalarHead, WorldModel
from rlcore.algorithms.replay import make_replay
from rlcore.config.groups import BufferConfig
from rlcore.data.replay import Replay
from rlcore.data.samplers import Episodes, Sequences
from rlcore.functional.noise import Noise
from rlcore.functional.stats import mean_metrics, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Metrics, TrainingSchedule, Trajectory


class Segment(NamedTuple):
    """Batch of N sequences of L time steps for the losses; each tensor is [L, N, ...].

    `before` [L, N, A'] contains the previous actions as vectors (discrete actions are encoded one-hot).
    """

    obs: dict[str, Tensor]
    before: Tensor
    is_first: Tensor
    reward: Tensor
    terminated: Tensor


def segment_of(steps: Trajectory, actor: LatentActor) -> Segment:
    """Convert sequences [L, N] from the replay buffer to a `Segment`; `actor` encodes the actions as vectors."""
    before, is_first = open_at_first_row(actor.flat(steps.action), steps.is_first)
    return Segment(steps.obs, before, is_first, steps.reward, steps.terminated)


def open_at_first_row(action: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the previous action of each row, [L, N, A'], and `is_first` [L, N] with row 0 set to true.

    `action` [L, N, A'] contains the action that was selected in each row. It is moved to the next row; the previous
    action of row 0 is 0.
    """
    before = torch.cat([torch.zeros_like(action[:1]), action[:-1]])
    return before, torch.cat([torch.ones_like(is_first[:1]), is_first[1:]])


class DreamerAgent(WorldAgent):
    """Agent with a world model and an actor, built from the config of a Dreamer algorithm.

    Args:
        config: config of the algorithm.
        spec: spec of the environment.
        distribution: `distribution.type`; "auto" is the algorithm's default for the action space.
        rng: CPU generator for the initialization.
        latent: distribution of the stochastic part of the model state.
        reward: distribution of predicted rewards.
        value: distribution of the values that the critic predicts; None = `reward`.
        scales: initialization scale of all output layers except the reward head's, and scale of the reward head's
            output layer; see `dense.initialise_glorot`.
    """

    def __init__(
        self,
        config: Any,
        spec: EnvSpec,
        distribution: str,
        rng: torch.Generator,
        latent: Latent,
        reward: ScalarHead,
        value: ScalarHead | None = None,
        scales: tuple[float | None, float | None] = (1.0, 1.0),
    ) -> None:
        images, vectors = config.cnn_keys, config.mlp_keys
        keys = (images.encoder, vectors.encoder), (images.decoded, vectors.decoded)
        world = WorldModel(config.world_model, spec, *keys, latent, reward, scales, rng)
        form, layers = config.actor.policy(config.policy_kind(spec.action, distribution)), config.actor.layers
        stretch = config.normalize_actions
        actor = LatentActor(world.feat_size, spec.action, layers, form, stretch, scales[0], rng)
        super().__init__(world, actor, value)


class DreamerLearner(protocols.Learner):
    """Base class of Dreamer learners: agent, critic, optional target critic, and their optimizers.

    A subclass implements `model_loss` and `actor_objective`. Each returns the summed loss, the sum of the weights, the
    means to log, and a dict of tensors for the next loss (`rlcore.optim.optimizer.Loss`). `model_loss` passes the model
    states to `actor_objective`. `actor_objective` passes three tensors to `critic_objective`: `feat`, `returns` and
    `weight` of the imagined states, [H, L·N, ...]; in Dreamer V1, H is the horizon minus 1.

    Args:
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).
        agent_class: subclass of `DreamerAgent`; its arguments are config, spec, distribution and a torch.Generator.
        scale: initialization scale of the critic's output layer; see `dense.initialise_glorot`.
        modules: other modules with buffers that the loss functions read or update.
    """

    def __init__(
        self, context: Context, agent_class: Any, scale: float | None, modules: Sequence[nn.Module] = ()
    ) -> None:
        config = self.config = context.config.algo
        self.ranks, self.updates = context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent: WorldAgent = agent_class(config, context.spec, context.config.distribution.type, rng)
        world, actor, self.number = self.agent.world, self.agent.actor, self.agent.number
        self.critic = Dense(world.feat_size, config.critic.layers, rng, self.number.outputs, scale)
        self.target = None if config.critic.target_tau(0) is None else Target(self.critic, context)
        targets = [] if self.target is None else [self.target]
        slow = [target.module for target in targets]
        self.explorer: Explorer | None = None
        if config.actor.explores:
            self.explorer = Explorer(self.agent, config.actor.exploration(0))
        self.world_optimizer = self._optimizer(world, self.model_loss, config.world_model, context)
        uses = [world, self.critic, *slow]
        self.actor_optimizer = self._optimizer(actor, self.actor_objective, config.actor, context, uses)
        self.critic_optimizer = self._optimizer(self.critic, self.critic_objective, config.critic, context, slow)
        optimizers = [self.world_optimizer, self.actor_optimizer, self.critic_optimizer]
        self.step = Step(self.gradient_step, optimizers, targets, context, modules)
        self.transferable_components = tuple(
            name for name in ("agent", "critic", "target_critic", "moments") if name in self.components()
        )

    def _optimizer(self, module: Any, loss: Any, config: Any, context: Context, uses: Any = ()) -> Optimizer:
        rule = self.rule(config.optimizer)
        return Optimizer(module, loss, rule, context, max_grad_norm=config.clip_gradients, uses=uses)

    @staticmethod
    def rule(settings: OptimizerConfig) -> OptimizerConfig:
        """Return the settings with which an optimizer is built, derived from the config's `settings`.

        The base class returns them unchanged; a subclass can replace them.
        """
        return settings

    @property
    def behavior_policy(self) -> Any:
        """Policy that selects actions during collection: the agent, with exploration noise if the config enables it."""
        return self.explorer or self.agent

    @property
    def target_critic(self) -> Any:
        """Network of the target critic; the algorithm must have one."""
        assert self.target is not None
        return self.target.module

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Take one gradient step of world model, actor and critic on sequences [L, N]; return the means to log."""
        tau = self.config.critic.target_tau(self.updates) or 0.0
        self.updates += 1
        metrics = self.step(segment_of(batch.steps, self.agent.actor), tau, rng=self.noise)
        found = mean_metrics([metrics], self.ranks)
        if self.explorer is not None:
            amount = self.config.actor.exploration(batch.policy_steps)
            self.explorer.amount.value = torch.full_like(self.explorer.amount.value, amount)
            found["Params/exploration_amount"] = self.explorer.amount.value
        return found

    def gradient_step(self, batch: Segment, tau: float, rng: Noise) -> Metrics:
        """Update the target critic, the world model, the actor and the critic, in this order; return the means to log.

        Actor and critic are trained on trajectories imagined from the model states. `tau` is the fraction τ of the
        target critic's update.
        """
        if self.target is not None:
            self.target.update(self.critic_optimizer, tau)
        model = self.world_optimizer.minimize(batch, rng)
        actor = self.actor_optimizer.minimize(ModelState(**model.aux), batch.terminated, rng)
        critic = self.critic_optimizer.minimize(actor.aux)
        norms = {"Grads/world_model": model.norm, "Grads/actor": actor.norm, "Grads/critic": critic.norm}
        return model.metrics | actor.metrics | critic.metrics | norms

    def observe(self, batch: Segment, rng: Noise, distance: Distance) -> tuple[ModelState, Any, Any, Tensor, Tensor]:
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
        state, prior, posterior = world.observe(seen, batch.before, batch.is_first, noise)
        observation = world.decoder.loss(world.decoder(state.feat), seen, 2, distance)
        return state, prior, posterior, observation, world.reward_loss(state.feat, batch.reward)

    @staticmethod
    def reduce_model_loss(
        loss: Tensor, terms: Mapping[str, Tensor], measures: Mapping[str, Tensor], state: ModelState
    ) -> Any:
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

    def model_loss(self, batch: Segment, rng: Noise) -> Any:
        """Compute the loss of the world model; the last element returned is the model states, name -> [L, N, ...]."""
        raise NotImplementedError

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> Any:
        """Compute the actor loss on trajectories imagined from the model states [L, N].

        `terminated` [L, N] is true if the episode terminated at the time step. The last element returned is the input
        of `critic_objective`: `feat`, `returns` and `weight` of the imagined states.
        """
        raise NotImplementedError

    def critic_objective(self, imagined: dict[str, Tensor]) -> Any:
        """Compute the critic loss -w log p(R | feat) on imagined states.

        `imagined` contains the features `feat` of the states, their returns R (`returns`), and their cumulative
        discounts w (`weight`).
        """
        returns, weight = imagined["returns"], imagined["weight"]  # [H, L·N]
        assert weight.shape == returns.shape, (weight.shape, returns.shape)
        loss = (weight * self.number.loss(self.critic(imagined["feat"]), returns)).flatten()
        return reduce_loss(loss, torch.ones_like(loss), Loss__value_loss=loss)

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: agent, critics, noise stream, step, optimizers, amount of exploration."""
        found: dict[str, Any] = {
            "agent": self.agent,
            "critic": self.critic,
            "target_critic": self.target,
            "noise": self.noise,
            "step": self.step,
            "world_optimizer": self.world_optimizer,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }
        if self.explorer is not None:
            found["exploration"] = self.explorer.amount
        return {name: part for name, part in found.items() if part is not None}


def memory_and_plan(context: Context) -> tuple[Replay, TrainingSchedule]:
    """Build a replay buffer from which sequences are sampled, and the training schedule."""
    length = context.config.algo.per_rank_sequence_length
    buffer: BufferConfig = context.config.buffer
    sampler = Episodes(length, buffer.prioritize_ends) if buffer.type == "episode" else Sequences(length)
    return make_replay(context, sampler, rows=length)
