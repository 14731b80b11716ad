"""PPO with memory: Dota 2 with Large Scale Deep Reinforcement Learning. Berner et al. 2019, arXiv:1912.06680.

Read with:
    observation to LSTM to heads        Agent.unroll: oₜ, aₜ₋₁, carry -> policy, value, carry
    samples of 16 consecutive steps     Learner.draw: L rows, from the carry that acted; gradients along them
    eq. 7, 9, 11-12 of PPO              the learner of rlcore.algorithms.ppo, from which this one derives

What a sequence begins with is what the agent carried there; drawn for one environment and L = 4:

    t           0   1   2   3 | 4   5   6   7       carried before rows 0 and 4: kept with them
    is_first    1   0   0   0   0   1   0   0       at 0 and 5 the carry is emptied, within a sequence too
    weight      1   1   1   1   0   1   1   1       row 4 ended its episode: it is in no mean

Departs from PPO in its agent, and in that minibatches are drawn of sequences. From the paper: every sample is used
`update_epochs` times, by whoever collected it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.ppo import learner as ppo
from rlcore.algorithms.ppo_recurrent.config import Config
from rlcore.data.history import Recalled
from rlcore.data.rollout import Rollout, cut_sequences, fill_groups, minibatches
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.nn.actor_critic import ActorCritic
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.mlp import MLP
from rlcore.nn.recurrent import CELLS, CellState
from rlcore.spec import ACTION, EnvSpec, Window
from rlcore.types import Batch, Context, Plan


class Seen(NamedTuple):
    """L rows of M sequences, all of one time before those of the next, as the agent sees them.

    Attributes:
        obs: key -> [L·M, ...], with a window [L·M, frames, ...]; the action before, [L·M, 1, A], among them.
        is_first: [L·M] bool; there the carry is empty, and there was no action before.
        carry: name -> [M, H], before the first rows.
    """

    obs: dict[str, Tensor]
    is_first: Tensor
    carry: CellState


class SequenceRows(NamedTuple):
    """The N = T·B rows of a rollout, numbered t·B + b, of which sequences may be looked at.

    Attributes:
        obs: of all rows, with the action before each.
        is_first: [N] bool.
        carry: name -> [N, H], the carry that acted, before each row.
        length: L, rows of a sequence.
    """

    obs: Recalled
    is_first: Tensor
    carry: CellState
    length: int

    def at(self, rows: Tensor) -> Seen:
        """K minibatches of sequences, rows [K, L·M] -> tensors [K, L·M, ...] and a carry [K, M, H]."""
        first = rows.unflatten(1, (self.length, -1))[:, 0]
        carry = {name: part[first] for name, part in self.carry.items()}
        return Seen(self.obs.at(rows), self.is_first[rows], carry)


class Agent(ActorCritic):
    """Features of an observation and the action before it, through a recurrent core, to actor and critic.

    Args:
        config: keys of the observations, their normalisation, and the layers.
        spec: of the environment.
        distribution: `distribution.type`.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, config: Any, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__(config, spec, distribution, rng)
        self.history, self.action = self.history | {ACTION: Window(1)}, spec.action
        self.forgets = config.reset_recurrent_state_on_done

    def core(self, config: Config, spec: EnvSpec, rng: torch.Generator) -> int:
        """Make the recurrent cell and the layers around it."""
        features = self.encoder.output_size + spec.action.flat_size
        self.before = MLP(features, config.rnn.pre_rnn_mlp.layers, rng)
        self.cell = CELLS[config.rnn.cell](self.before.output_size, config.rnn.lstm.hidden_size, rng)
        self.after = MLP(self.cell.output_size, config.rnn.post_rnn_mlp.layers, rng)
        return self.after.output_size

    def unroll(self, seen: Seen) -> tuple[Policy, Tensor, CellState]:
        """Go through L rows of M sequences: the policy over [L·M, A], values [L·M], the carry after the last rows."""
        obs, is_first, carry = seen
        said = flatten_actions(obs[ACTION], self.action, 1).masked_fill(is_first.unsqueeze(-1), 0)
        features = self.before(torch.cat([self.encoder(obs), said], -1))
        forget = is_first if self.forgets else torch.zeros_like(is_first)
        h, carry = self.cell(features, forget, carry)
        found = self.after(h)
        return self.head.policy(self.head(self.actor(found))), self.critic(found).squeeze(-1), carry

    def forward(self, obs: Seen) -> tuple[Policy, Tensor]:
        """The policy over [L·M, A], and values [L·M], each with what the agent remembers now of the rows before."""
        policy, value, _ = self.unroll(obs)
        return policy, value

    def initial(self, batch_size: int) -> CellState:
        """An empty memory: name -> [B, H]."""
        return self.cell.initial(batch_size)

    def act(
        self, carry: CellState, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[CellState, Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B], the `value` [B], and the carry before."""
        policy, value, after = self.unroll(Seen(obs, is_first, carry))
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return after, action, {"logprob": policy.logprob(action), "value": value, **carry}


class Learner(ppo.Learner):
    """Improves an `Agent` from one rollout at a time, by PPO's objective on sequences of it."""

    agent_class = Agent

    def recall(self, batch: Batch) -> tuple[SequenceRows, Seen]:
        """The rows of a rollout [T, B] with what was carried before each, and the arrival after them."""
        obs, arrival = super().recall(batch)
        steps, last = batch.steps, batch.last
        carry = {name: steps.extras[name].flatten(0, 1) for name in last.carry}
        rows = SequenceRows(obs, steps.is_first.flatten(0, 1), carry, self.config.sequence_length)
        return rows, Seen(arrival, last.is_first, last.carry)

    def draw(self, weight: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw minibatches of M sequences, rows [epochs, minibatches, L·M]; M follows from how many there are to be."""
        config, (length, width) = self.config, weight.shape
        cut, own = (part.to(weight.device) for part in cut_sequences(length, width, config.sequence_length))
        weight = weight.flatten()[cut] * own  # [S, L]
        size = math.ceil(len(cut) / config.per_rank_num_batches)
        drawn = minibatches(weight.amax(-1), size, config.update_epochs, rng)
        chosen, counted = fill_groups(*drawn, config.accumulate_minibatches, self.ranks.sum)
        weight = weight[chosen] * counted.unsqueeze(-1)  # [epochs, minibatches, M, L]
        return cut[chosen].transpose(2, 3).flatten(2), weight.transpose(2, 3).flatten(2)


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    return Learner(context), Rollout(), Plan(config.total_steps, config.rollout_steps)
