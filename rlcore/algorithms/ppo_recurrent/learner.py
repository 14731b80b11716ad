"""PPO with memory: Dota 2 with Large Scale Deep Reinforcement Learning. Berner et al. 2019, arXiv:1912.06680.

Read with:
    observation to LSTM to heads        Agent.unroll: oₜ, aₜ₋₁, carry -> policy, value, carry
    samples of 16 consecutive steps     Learner.draw: L rows, from the carry that acted; gradients along them
    eq. 7, 9, 11-12 of PPO              objective, make_samples of rlcore.algorithms.ppo.learner

What a sequence begins with is what the agent carried there; drawn for one environment and L = 4:

    t           0   1   2   3 | 4   5   6   7       carried before rows 0 and 4: kept with them
    is_first    1   0   0   0   0   1   0   0       at 0 and 5 the carry is emptied, within a sequence too
    weight      1   1   1   1   0   1   1   1       row 4 ended its episode: it is in no mean

Departs from PPO in its agent alone: losses, advantages, epochs and steps are PPO's functions. From the paper: every
sample is used `update_epochs` times, by whoever collected it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.algorithms.ppo.learner import Samples, make_samples, objective, step_once, summarize, take_steps
from rlcore.algorithms.ppo_recurrent.config import Config
from rlcore.data.history import recall
from rlcore.data.reward_scale import RewardScaler
from rlcore.data.rollout import Rollout, cut_sequences, fill_groups, minibatches
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.functional.stats import standardize
from rlcore.nn.encoder import MultiEncoder, flatten_actions
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import PolicyHead
from rlcore.nn.recurrent import CELLS, State
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.spec import ACTION, EnvSpec, Window
from rlcore.types import Batch, Context, Metrics, Plan, Ranks


class Agent(nn.Module):
    """Features of an observation and the action before it, through a recurrent core, to actor and critic.

    Args:
        config: keys of the observations, their normalisation, and the layers.
        spec: of the environment.
        distribution: `distribution.type`.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        vectors, images = config.mlp_keys.encoder, config.cnn_keys.encoder
        self.keys, self.action = (*vectors, *images), spec.action
        windows = spec.windows(self.keys)
        self.history = windows | {ACTION: Window(1)}
        self.forgets = config.reset_recurrent_state_on_done
        clip = config.obs_clip if config.normalize_obs else None
        self.encoder = MultiEncoder(spec, vectors, images, config.encoder, rng, clip, windows)
        self.before = MLP(self.encoder.output_size + spec.action.flat_size, config.rnn.pre_rnn_mlp.layers, rng)
        self.cell = CELLS[config.rnn.cell](self.before.output_size, config.rnn.lstm.hidden_size, rng)
        self.after = MLP(self.cell.output_size, config.rnn.post_rnn_mlp.layers, rng)
        self.actor = MLP(self.after.output_size, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.critic = MLP(self.after.output_size, config.critic, rng, outputs=1)

    def observe(self, obs: dict[str, Tensor], ranks: Ranks) -> None:
        """Let observations key -> [T, B, *shape] of all ranks count in the normaliser, if any."""
        self.encoder.observe(obs, ranks)

    def unroll(self, obs: dict[str, Tensor], is_first: Tensor, carry: State) -> tuple[Policy, Tensor, State]:
        """Go through L rows of M sequences, all of one time before those of the next.

        Args:
            obs: key -> [L·M, ...], with a window [L·M, frames, ...]; the action before, [L·M, 1, A], among them.
            is_first: [L·M] bool; there the carry is empty, and there was no action before.
            carry: name -> [M, H], before the first rows.

        Returns:
            The policy over [L·M, A], values [L·M], and the carry after the last rows.
        """
        said = flatten_actions(obs[ACTION], self.action, 1).masked_fill(is_first.unsqueeze(-1), 0)
        features = self.before(torch.cat([self.encoder(obs), said], -1))
        forget = is_first if self.forgets else torch.zeros_like(is_first)
        h, carry = self.cell(features, forget, carry)
        found = self.after(h)
        return self.head.policy(self.head(self.actor(found))), self.critic(found).squeeze(-1), carry

    def initial(self, batch_size: int) -> State:
        """An empty memory: name -> [B, H]."""
        return self.cell.initial(batch_size)

    def act(
        self, carry: State, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[State, Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B], the `value` [B], and the carry before."""
        policy, value, after = self.unroll(obs, is_first, carry)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return after, action, {"logprob": policy.logprob(action), "value": value, **carry}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.head.from_env(action)


class Sequences(NamedTuple):
    """M sequences of L rows, N = L·M, all of one time before those of the next; of a whole rollout, its rows alone.

    Attributes:
        samples: the rows, [N].
        is_first: [N] bool.
        begin: name -> [M, H], the carry that acted, before each sequence's first row; of a rollout before every row.
    """

    samples: Samples
    is_first: Tensor
    begin: State

    @property
    def weight(self) -> Tensor:
        """[N]; 0 where a row only resets, and where a sequence is filled up."""
        return self.samples.weight

    def at(self, rows: Tensor, advantage: Tensor, weight: Tensor) -> Sequences:
        """Of a rollout, the sequences of some rows [K, L, M], with advantages and weights [K, L·M] of their own."""
        every = rows.flatten(1)
        begin = {name: part[rows[:, 0]] for name, part in self.begin.items()}
        return Sequences(self.samples.at(every, advantage, weight), self.is_first[every], begin)


class Learner(protocols.Learner):
    """Improves an `Agent` from one rollout at a time, by PPO's objective on sequences of it."""

    def __init__(self, context: Context) -> None:
        config = self.config = context.config.algo
        self.ranks, self.autocast, self.updates = context.ranks, context.fabric.autocast, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # on every rank the same
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        how = {"max_grad_norm": config.max_grad_norm, "reduction": config.loss_reduction}
        self.optimizer = Optimizer(self.agent, self.loss, config.optimizer, context, **how)
        self.step = Step(self.gradient_step, [self.optimizer], [], context)
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip, self.ranks)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Fit the agent to a rollout [T, B]; returns averages over the steps."""
        coefs = self.config.coefficients(batch.policy_steps)
        self.optimizer.set_lr(coefs["lr"])
        if self.config.normalize_reward:
            batch = self.reward_scaler.scale(batch)
        rollout = self.samples(batch)
        rows, weight = self.draw(rollout.weight.unflatten(0, batch.steps.reward.shape), rng)
        advantage = rollout.samples.advantage[rows].flatten(2)
        if self.config.normalize_advantages:
            advantage = standardize(advantage, weight, self.ranks.sum)
        epochs = (rollout.at(*epoch) for epoch in zip(rows, advantage, weight, strict=True))
        logged = take_steps(self, epochs, coefs)
        self.agent.observe(batch.steps.obs, self.ranks)
        return summarize(logged, coefs, self.ranks)

    @torch.no_grad()
    def samples(self, batch: Batch) -> Sequences:
        """The rows of a rollout [T, B], and what was carried before each of them."""
        obs, last = recall(batch, self.agent.history, self.agent.keys)
        with self.autocast():
            _, last_value, _ = self.agent.unroll(last, batch.last.is_first, batch.last.carry)
        begin = {name: batch.steps.extras[name].flatten(0, 1) for name in batch.last.carry}
        return Sequences(make_samples(batch, obs, last_value, self.config), batch.steps.is_first.flatten(0, 1), begin)

    def draw(self, weight: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw the sequences of each minibatch.

        Args:
            weight: [T, B], of a rollout's rows.
            rng: decides the order.

        Returns:
            rows [epochs, K, L, M] int64, numbered t·B + b, and their weight [epochs, K, L·M].
        """
        config, (length, width) = self.config, weight.shape
        cut, own = (part.to(weight.device) for part in cut_sequences(length, width, config.sequence_length))
        weight = weight.flatten()[cut] * own  # [S, L]
        size = math.ceil(len(cut) / config.per_rank_num_batches)
        drawn = minibatches(weight.amax(-1), size, config.update_epochs, rng)
        chosen, counted = fill_groups(*drawn, config.accumulate_minibatches, self.ranks.sum)
        weight = weight[chosen] * counted.unsqueeze(-1)  # [epochs, K, M, L]
        return cut[chosen].transpose(2, 3), weight.transpose(2, 3).flatten(2)

    def gradient_step(self, minibatches: Several[Sequences], coefs: Mapping[str, float]) -> Metrics:
        """One step on PPO's objective over minibatches, and their means."""
        return step_once(self.optimizer, minibatches, coefs, self.config.target_kl, self.ranks)

    def loss(self, batch: Sequences, coefs: Mapping[str, float]) -> tuple[Tensor, Tensor, Metrics]:
        """PPO's objective over rows [N], each seen with what the agent remembers now of those before it."""
        policy, value, _ = self.agent.unroll(batch.samples.obs, batch.is_first, batch.begin)
        return objective(policy, value, batch.samples, coefs, self.config)

    def parts(self) -> dict[str, protocols.Part]:
        """The agent with its normaliser, the optimizer, how steps are computed, the statistics of rewards."""
        names = ("agent", "optimizer", "step", "reward_scaler")
        return {name: getattr(self, name) for name in names}


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    return Learner(context), Rollout(), Plan(config.total_steps, config.rollout_steps)
