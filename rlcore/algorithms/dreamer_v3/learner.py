"""Dreamer V3: Mastering Diverse Domains through World Models. Hafner et al. 2023, arXiv:2301.04104v1.

Read with:
    eq. 1-2, symlog predictions              rlcore.functional.symlog, rlcore.nn.world_model.KeyEncoder.see
    eq. 3, recurrent state-space model       rlcore.nn.rssm.RSSM, rlcore.nn.world_model.WorldModel
    eq. 4-5, loss of the world model         Learner.model_loss, kl_loss
    eq. 6-7, actor, critic, λ-returns        rlcore.nn.imagination.imagine, rlcore.functional.returns.lambda_return
    eq. 8-9, two-hot critic                  critic_loss, rlcore.functional.two_hot.TwoHot
    eq. 10, regulariser of the critic        critic_loss, by its slow copy
    eq. 11-12, actor and scale of returns    actor_loss, rlcore.nn.return_scale.ReturnScale

A sequence's row t, as it was collected: what arrives with obs[t] is of the step before it.

    t             0      1      2*     3      4          * obs 2 ended the episode
    is_first      1      0      0      1      0          row 0 always, as states are not kept
    action before -      a0     a1     -      a0'        forgotten with the state where is_first
    reward        0      r1     r2     0      r1'        what the head of the state at t is to say
    continue      1      1      0      1      1          1 - terminated: an episode that is cut short goes on
    imagined      s0 -> ŝ1 -> ŝ2 ...                     from every row; reward and continue of the state stepped to

Departs from the paper: as its authors' code of 2023 and SheepRL's `dreamer_v3` do: continuous actions learn through the
model (`algo.actor.objective_mix`), states begin anew with each sequence. Greedy, a continuous action is the mean.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore import protocols, streams
from rlcore.algorithms.dreamer_v3.config import Config
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sequences
from rlcore.functional.latents import categorical_entropy, categorical_kl, free_nats
from rlcore.functional.noise import Noise
from rlcore.functional.returns import lambda_return
from rlcore.functional.stats import mean_metrics, reduce_loss
from rlcore.functional.two_hot import TwoHot
from rlcore.functional.unit_normal import squared_distance
from rlcore.nn.dense import Dense
from rlcore.nn.imagination import imagine
from rlcore.nn.latent_actor import LatentActor
from rlcore.nn.return_scale import ReturnScale
from rlcore.nn.rssm import Categoricals, State
from rlcore.nn.world_agent import WorldAgent
from rlcore.nn.world_model import WorldModel
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Metrics, Plan

PARTS = ("agent", "critic", "target_critic", "moments", "noise", "step")
OPTIMIZERS = ("world_optimizer", "actor_optimizer", "critic_optimizer")


class Agent(WorldAgent):
    """World model and actor, made of a config.

    Args:
        config: sizes, keys, unimix.
        spec: of the environment.
        distribution: `distribution.type`, of which there is one for each action space.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        images, vectors, zeros = config.cnn_keys, config.mlp_keys, config.hafner_initialization
        keys = (images.encoder, vectors.encoder), (images.decoded, vectors.decoded)
        scale, nothing, model = 1.0 if zeros else None, 0.0 if zeros else None, config.world_model
        latent = Categoricals(model.stochastic_size, model.discrete_size, config.unimix)
        number = TwoHot(model.reward_model.bins)
        world = WorldModel(model, spec, *keys, latent, number, (scale, nothing), rng)
        super().__init__(
            world, LatentActor(world.feat_size, spec.action, config.actor, config.normalize_actions, scale, rng)
        )


class Sequence(NamedTuple):
    """Rows [L, N] as the model takes them; `before` [L, N, A'] is the action before each, laid flat."""

    obs: dict[str, Tensor]
    before: Tensor
    is_first: Tensor
    reward: Tensor
    terminated: Tensor


def kl_loss(posterior: Tensor, prior: Tensor, dynamic: float, representation: float, nats: float) -> Tensor:
    """β_dyn max(1, KL[sg q ‖ p]) + β_rep max(1, KL[q ‖ sg p]), eq. 5. Log-probabilities [..., S, K] -> [...]."""
    to_prior = free_nats(categorical_kl(posterior.detach(), prior), nats)
    to_posterior = free_nats(categorical_kl(posterior, prior.detach()), nats)
    return dynamic * to_prior + representation * to_posterior


def critic_loss(logits: Tensor, returns: Tensor, slow: Tensor, two_hot: TwoHot) -> Tensor:
    """-log p(R) - log p(v_slow), eq. 10: returns, and what the slow copy says. logits [..., K], others [...]."""
    return two_hot.loss(logits, returns) + two_hot.loss(logits, slow)


def actor_loss(objective: Tensor, entropy: Tensor, weight: Tensor, coef: float) -> Tensor:
    """-(objective + η H), eq. 11, weighted by the chance that the episode is still going on. [H, N] each."""
    assert objective.shape == entropy.shape == weight.shape, (objective.shape, entropy.shape, weight.shape)
    return -weight * (objective + coef * entropy)


class Learner(protocols.Learner):
    """Improves an `Agent` by one batch of sequences at a time."""

    passed_on = ("agent", "critic", "target_critic", "moments")

    def __init__(self, context: Context) -> None:
        config = self.config = context.config.algo
        self.ranks, self.updates = context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # on every rank the same
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        self.two_hot, size = TwoHot(config.critic.bins), self.agent.world.feat_size
        scale = 0.0 if config.hafner_initialization else None
        self.critic = Dense(size, config.critic.layers, rng, self.two_hot.bins, scale)
        self.target_critic = Target(self.critic, context)
        self.moments = context.fabric.to_device(ReturnScale(config.actor.moments))
        mix, world, actor = config.actor.objective_mix, self.agent.world, self.agent.actor
        self.mix = float(not context.spec.action.continuous) if mix is None else mix
        self.world_optimizer = self._optimizer(world, self.model_loss, config.world_model, context)
        uses = [world, self.critic]
        self.actor_optimizer = self._optimizer(actor, self.actor_objective, config.actor, context, uses)
        uses = [self.target_critic.module]
        self.critic_optimizer = self._optimizer(self.critic, self.critic_objective, config.critic, context, uses)
        optimizers = [getattr(self, name) for name in OPTIMIZERS]
        self.step = Step(self.gradient_step, optimizers, [self.target_critic], context, [self.moments])

    @staticmethod
    def _optimizer(module: Any, loss: Any, config: Any, context: Context, uses: Any = ()) -> Optimizer:
        return Optimizer(module, loss, config.optimizer, context, max_grad_norm=config.clip_gradients, uses=uses)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """One gradient step of world model, actor and critic on sequences [L, N]."""
        steps, critic = batch.steps, self.config.critic
        said = self.agent.actor.flat(steps.action)  # [L, N, A']
        before = torch.cat([torch.zeros_like(said[:1]), said[:-1]])
        is_first = torch.cat([torch.ones_like(steps.is_first[:1]), steps.is_first[1:]])
        sequence = Sequence(steps.obs, before, is_first, steps.reward, steps.terminated)
        moves = self.updates % critic.per_rank_target_network_update_freq == 0
        tau = critic.tau if moves else 0.0
        self.updates += 1
        metrics = self.step(sequence, tau, rng=self.noise)
        return mean_metrics([metrics], self.ranks)

    def gradient_step(self, batch: Sequence, tau: float, rng: Noise) -> Metrics:
        """Slow critic, world model, then actor and critic on what is imagined from the model's states."""
        self.target_critic.follow(self.critic_optimizer, tau)
        model = self.world_optimizer.minimize(batch, rng)
        actor = self.actor_optimizer.minimize(State(**model.aux), batch.terminated, rng)
        critic = self.critic_optimizer.minimize(actor.aux)
        norms = {"Grads/world_model": model.norm, "Grads/actor": actor.norm, "Grads/critic": critic.norm}
        return model.metrics | actor.metrics | critic.metrics | norms

    def model_loss(self, batch: Sequence, rng: Noise) -> Any:
        """Eq. 4: observations, reward and ends told of the states, and prior and posterior brought together."""
        world, config = self.agent.world, self.config.world_model
        length, count = batch.reward.shape
        noise = world.rssm.noise(rng, length, count)
        seen = world.encoder.see(batch.obs, 2)
        state, prior, posterior = world.observe(seen, batch.before, batch.is_first, noise)
        feat = state.feat  # [L, N, F]
        observation = world.decoder.loss(world.decoder(feat), seen, 2, squared_distance)  # [L, N]
        reward = world.reward_loss(feat, batch.reward)
        goes_on = world.predict_continue(feat)
        ends = config.continue_scale_factor * F.binary_cross_entropy_with_logits(
            goes_on, (~batch.terminated).to(goes_on), reduction="none"
        )
        kl = kl_loss(posterior, prior, config.kl_dynamic, config.kl_representation, config.kl_free_nats)
        loss = observation + reward + ends + config.kl_regularizer * kl
        found = reduce_loss(
            loss.flatten(),
            torch.ones_like(loss).flatten(),
            Loss__world_model_loss=loss.flatten(),
            Loss__observation_loss=observation.flatten(),
            Loss__reward_loss=reward.flatten(),
            Loss__continue_loss=ends.flatten(),
            Loss__state_loss=kl.flatten(),
            State__kl=categorical_kl(posterior, prior).flatten(),
            State__post_entropy=categorical_entropy(posterior).flatten(),
            State__prior_entropy=categorical_entropy(prior).flatten(),
        )
        return *found, state.detach()._asdict()

    def actor_objective(self, states: State, terminated: Tensor, rng: Noise) -> Any:
        """Eq. 11 on trajectories from every state [L, N]; these, their λ-returns and weights, for the critic."""
        world, config, critic = self.agent.world, self.config, self.critic
        start = State(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        with torch.set_grad_enabled(self.mix < 1):  # REINFORCE needs none of what is imagined
            feat, action = imagine(world.rssm, self.agent.actor, start, config.horizon, rng)  # [H+1, L·N, F], [H, ...]
            value = self.two_hot.mean(critic(feat))  # [H+1, L·N]
            reward = world.predict_reward(feat[1:])  # [H, L·N]
            goes_on = (world.predict_continue(feat[1:]) > 0).float()  # most likely, without gradient
            returns = lambda_return(reward, config.gamma * goes_on, value[1:], config.lmbda)  # [H, L·N]
        first = (~terminated).float().flatten().unsqueeze(0)  # no step leaves an episode's last row
        weight = torch.cat([first, config.gamma * goes_on[:-1]]).cumprod(0)  # [H, L·N]
        advantage = (returns - value[:-1]) / self.moments(returns, self.ranks)
        policy = self.agent.actor.policy(feat[:-1].detach())
        objective = (1 - self.mix) * advantage if self.mix < 1 else torch.zeros_like(advantage)
        if self.mix > 0:
            objective = objective + self.mix * policy.logprob(action.detach()) * advantage.detach()
        loss = actor_loss(objective, policy.entropy(), weight, config.actor.ent_coef).flatten()
        found = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        return *found, {"feat": feat[:-1].detach(), "returns": returns.detach(), "weight": weight}

    def critic_objective(self, imagined: dict[str, Tensor]) -> Any:
        """Eq. 10 on imagined states, each as likely as its episode is still going on."""
        feat = imagined["feat"]  # [H, L·N, F]
        slow = self.two_hot.mean(self.target_critic.module(feat))
        loss = critic_loss(self.critic(feat), imagined["returns"], slow, self.two_hot) * imagined["weight"]
        return reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), Loss__value_loss=loss.flatten())

    def parts(self) -> dict[str, protocols.Part]:
        """Agent, critic, its slow copy, scale of returns, stream, optimizers, and how steps are computed."""
        return {name: getattr(self, name) for name in (*PARTS, *OPTIMIZERS)}


def build(context: Context) -> tuple[Learner, Replay, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    width, length = context.num_envs * context.ranks.size, config.per_rank_sequence_length
    replay = Replay(
        context,
        Sequences(length),
        size=config.rows(context.config.buffer.size, width),
        batch_size=config.per_rank_batch_size,
        ratio=Fraction(str(config.replay_ratio)) / context.ranks.size,
        starts=config.quiet_steps(width, length),
        pretrain=config.per_rank_pretrain_steps,
    )
    return Learner(context), replay, Plan(config.total_steps, config.collect_length, config.random_steps(width))
