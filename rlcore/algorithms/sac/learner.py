"""SAC: Soft Actor-Critic Algorithms and Applications. Haarnoja et al. 2018, arXiv:1812.05905; first arXiv:1801.01290.

Read with:
    eq. 5-6, soft Bellman residual J_Q      critic_loss, soft_target
    eq. 7-9, policy objective J_π           actor_loss
    eq. 18, temperature J(α)                alpha_loss
    appendix C, squashed normal             rlcore.functional.distributions.TanhNormal
    algorithm 1, gradient step              Learner.gradient_step
    algorithm 1, environment step           rlcore.train.collect, a row of every environment

Departs from the paper:
    actions are kept before the tanh, and the range of the environment's Box is left out of the log-probability;
    the loss of α is linear in log α, as the authors' code has it; rewards of n steps are those of `n_step` > 1;
    a truncated episode bootstraps from its true last observation (the paper does not tell the two apart).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.algorithms.sac.config import Config
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.data.steps import Transition, n_step
from rlcore.functional.distributions import TanhNormal
from rlcore.functional.noise import Noise
from rlcore.functional.stats import mean_metrics, reduce_loss
from rlcore.nn.critics import Critics
from rlcore.nn.encoder import flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import ActorConfig
from rlcore.nn.policy_head import PolicyHead
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Metrics, Plan, Steps

PARTS = (
    *("agent", "critics", "target", "temperature", "noise", "step"),
    *("critic_optimizer", "actor_optimizer", "alpha_optimizer"),
)


class Agent(nn.Module):
    """The policy: a perceptron's normal, squashed by tanh; an action is kept before the tanh."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.spec, self.keys, self.log_std_min = spec, tuple(config.mlp_keys.encoder), config.actor.log_std_min
        self.size = sum(spec.obs[key].size for key in self.keys)
        self.actor = MLP(self.size, config.actor.layers, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, "tanh_normal", ActorConfig(), rng)

    def features(self, obs: dict[str, Tensor]) -> Tensor:
        """Flat observations [N, F] float32 of obs key -> [N, ...]."""
        return flatten(obs, self.spec, self.keys, 1)

    def forward(self, features: Tensor) -> TanhNormal:
        """[N, F] -> the distribution of actions [N, A]."""
        mean, log_std = self.head(self.actor(features)).chunk(2, -1)
        return TanhNormal(mean, log_std.clamp(min=self.log_std_min))

    def initial(self, batch_size: int) -> tuple[()]:
        """No carry: this agent remembers nothing."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A]."""
        policy = self(self.features(obs))
        return (), policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng)), {}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.head.from_env(action)


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_logprob: Tensor, alpha: Tensor) -> Tensor:
    """y = r + γ (minᵢ Q̄ᵢ(s', a') - α log π(a'|s')), eq. 2-3, with the lowest of N critics. next_q [N, B] -> [B]."""
    assert reward.shape == next_logprob.shape == next_q.shape[1:], (reward.shape, next_logprob.shape, next_q.shape)
    return reward + discount * (next_q.amin(0) - alpha * next_logprob)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """J_Q, eq. 5: ½ Σᵢ (Qᵢ(s, a) - y)². q [N, B], target [B] -> [B]."""
    assert q.shape[1:] == target.shape, (q.shape, target.shape)
    return 0.5 * (q - target).square().sum(0)


def actor_loss(q: Tensor, logprob: Tensor, alpha: Tensor) -> Tensor:
    """J_π, eq. 7: α log π(a|s) - minᵢ Qᵢ(s, a), the gradient through a. q [N, B], logprob [B] -> [B]."""
    assert q.shape[1:] == logprob.shape, (q.shape, logprob.shape)
    return alpha * logprob - q.amin(0)


def alpha_loss(log_alpha: Tensor, logprob: Tensor, target_entropy: float) -> Tensor:
    """J(α), eq. 18: -log α (log π(a|s) + H̄), with log α for α. log_alpha [], logprob [B] -> [B]."""
    return -log_alpha * (logprob.detach() + target_entropy)


class Temperature(nn.Module):
    """α, positive as the exponential of its only parameter."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    @property
    def alpha(self) -> Tensor:
        """α [], without gradient."""
        return self.log_alpha.detach().exp()

    def _apply(self, fn: Any, recurse: bool = True) -> Temperature:
        """Moved to another precision, log α stays float32 or better: bfloat16 would round away its steps."""
        kept = self.log_alpha.data
        super()._apply(fn, recurse)
        if self.log_alpha.dtype not in (torch.float32, torch.float64):
            self.log_alpha.data = kept.to(self.log_alpha.device)
        return self


class Learner(protocols.Learner):
    """Improves an `Agent` by one batch of transitions at a time."""

    passed_on = ("agent", "critics", "target")

    def __init__(self, context: Context) -> None:
        config = self.config = context.config.algo
        self.ranks, self.updates = context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # on every rank the same
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        self.critics = Critics(self.agent.size, context.spec.action.size, config.critic.layers, config.critic.n, rng)
        self.temperature = Temperature(config.alpha.alpha)
        entropy = config.alpha.target_entropy
        self.target_entropy = -float(context.spec.action.size) if entropy is None else entropy
        self.target = Target(self.critics, context)
        uses = [self.agent, self.target.module, self.temperature]
        self.critic_optimizer = Optimizer(
            self.critics, self.critic_objective, config.critic.optimizer, context, uses=uses
        )
        uses = [self.critics, self.temperature]
        self.actor_optimizer = Optimizer(self.agent, self.actor_objective, config.actor.optimizer, context, uses=uses)
        optimizers = [self.critic_optimizer, self.actor_optimizer]
        if not config.alpha.fixed:
            self.alpha_optimizer = Optimizer(self.temperature, self.alpha_objective, config.alpha.optimizer, context)
            optimizers.append(self.alpha_optimizer)
        self.step = Step(self.gradient_step, optimizers, [self.target], context)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """One gradient step on transitions [n, N]."""
        config = self.config
        self.updates += 1
        moves = self.updates % config.critic.target_network_frequency == 0
        metrics = self.step(batch.steps, batch.last, config.tau if moves else 0.0, rng=self.noise)
        return mean_metrics([metrics], self.ranks)

    def gradient_step(self, steps: Steps, last: Steps, tau: float, rng: Noise) -> Metrics:
        """Algorithm 1, "for each gradient step": critics, policy, temperature, target."""
        batch = n_step(Batch(steps, last, 0), self.config.gamma)
        critic = self.critic_optimizer.minimize(batch, rng.normal(*batch.action.shape))
        actor = self.actor_optimizer.minimize(batch, rng.normal(*batch.action.shape))
        metrics = critic.metrics | actor.metrics
        if not self.config.alpha.fixed:
            metrics |= self.alpha_optimizer.minimize(actor.aux["logprob"], batch.weight).metrics
        self.target.follow(self.critic_optimizer, tau)
        return metrics | {"Info/critic_grad_norm": critic.norm, "Info/actor_grad_norm": actor.norm}

    def critic_objective(self, batch: Transition, noise: Tensor) -> Any:
        """J_Q over a batch; the policy answers the next observations as it is now."""
        with torch.no_grad():
            features = self.agent.features(batch.next_obs)
            policy = self.agent(features)
            action = policy.sample(noise)
            next_q, logprob = self.target.module(features, action.tanh()), policy.logprob(action)
            target = soft_target(batch.reward, batch.discount, next_q, logprob, self.temperature.alpha)
        q = self.critics(self.agent.features(batch.obs), batch.action.tanh())
        loss = critic_loss(q, target)
        return reduce_loss(loss, batch.weight, Loss__value_loss=loss, Info__q=q.mean(0))

    def actor_objective(self, batch: Transition, noise: Tensor) -> Any:
        """J_π over a batch; the log-probabilities [N] are kept for J(α)."""
        features = self.agent.features(batch.obs)
        policy = self.agent(features)
        action = policy.sample(noise)
        logprob = policy.logprob(action)
        loss = actor_loss(self.critics(features, action.tanh()), logprob, self.temperature.alpha)
        found = reduce_loss(loss, batch.weight, Loss__policy_loss=loss, Info__entropy=-logprob)
        return *found, {"logprob": logprob.detach()}

    def alpha_objective(self, logprob: Tensor, weight: Tensor) -> Any:
        """J(α) over a batch."""
        log_alpha = self.temperature.log_alpha
        loss = alpha_loss(log_alpha, logprob, self.target_entropy)
        return reduce_loss(loss, weight, Loss__alpha_loss=loss, Info__alpha=log_alpha.exp().expand_as(loss))

    def parts(self) -> dict[str, protocols.Part]:
        """Parameters, targets, optimizers, stream, and how steps are computed."""
        return {name: getattr(self, name) for name in PARTS if hasattr(self, name)}  # a fixed α has no optimizer


def build(context: Context) -> tuple[Learner, Replay, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    width = context.num_envs * context.ranks.size
    replay = Replay(
        context,
        Transitions(config.n_step),
        size=config.rows(context.config.buffer.size, width),
        batch_size=config.per_rank_batch_size,
        ratio=Fraction(str(config.replay_ratio)) / context.ranks.size,
        starts=config.quiet_steps(width),
        pretrain=config.per_rank_pretrain_steps,
    )
    return Learner(context), replay, Plan(config.total_steps, config.collect_length, config.random_steps(width))
