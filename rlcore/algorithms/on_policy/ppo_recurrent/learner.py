"""PPO with memory: Dota 2 with Large Scale Deep Reinforcement Learning. Berner et al. 2019, arXiv:1912.06680.

Parts of the papers and the code that implements them:
    network with LSTM                   Agent.unroll: oₜ, aₜ₋₁, carry -> policy, value, carry
    samples of 16 consecutive steps     Learner.draw: sequences of L rows, for backpropagation through time
    eq. 7, 9, 11-12 of PPO              rlcore.algorithms.on_policy.ppo.learner, the base class of this learner

The carry is the recurrent state of the agent. For training, a rollout is cut into sequences of L rows (time steps). The
first row of a sequence is processed with the carry that was stored during data collection. Example with one
environment, 8 rows and two sequences of L = 4 rows:

    t           0   1   2   3 | 4   5   6   7       the stored carries before rows 0 and 4 are used
    is_first    1   0   0   0   0   1   0   0       the carry is reset before rows 0 and 5, also within a sequence
    weight      1   1   1   1   0   1   1   1       row 4 is the last row of an episode; the next step only resets

Differences from PPO: the agent is recurrent, and minibatches consist of sequences.
Differences from the paper: each sample is used in `update_epochs` epochs, by the process (rank) that collected it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.algorithms.on_policy.ppo_recurrent.config import Config
from rlcore.data.history import SamplesWithHistory, gather_history
from rlcore.data.minibatches import cut_sequences, minibatches
from rlcore.data.rollout import Rollout
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise, SortKeyStream
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.mlp import MLP
from rlcore.nn.recurrent import CELLS, CellState
from rlcore.spec import ACTION, EnvSpec, Window
from rlcore.types import Batch, Context, TrainingSchedule

CLOCK = "since_reset"  # name of the entry of a carry that counts the rows since the recurrent state was reset


class Seen(NamedTuple):
    """Input of the recurrent agent: M sequences of L rows (time steps), flattened in the order [L, M].

    Attributes:
        obs: key -> observations [L·M, ...], or [L·M, frames, ...] for keys with a frame stack. An additional key
            contains the previous action, [L·M, 1, A].
        is_first: [L·M] bool; True for the first row of an episode, before which the carry (recurrent state) is reset.
            The previous action of such a row is ignored.
        carry: name -> [M, H]; carry before the first row of each sequence. If the config sets
            `sequences_per_state_reset`, CLOCK -> [L·M] int64 is the clock before every row.
    """

    obs: dict[str, Tensor]
    is_first: Tensor
    carry: CellState


class SequenceRows(NamedTuple):
    """Inputs of the recurrent agent at all N = T·B rows (time steps) of a rollout; the index of a row is t·B + b.

    Attributes:
        obs: observations and previous actions of all rows.
        is_first: [N] bool; True for the first row of an episode.
        carry: name -> [N, H]; carry (recurrent state) before each row, as stored during data collection.
        length: L; number of rows in the sequences that `at` selects.
    """

    obs: SamplesWithHistory
    is_first: Tensor
    carry: CellState
    length: int

    def at(self, rows: Tensor) -> Seen:
        """Return the agent's input for K minibatches of M sequences of L rows.

        `rows` [K, L·M] contains the row indices of each minibatch. The result has tensors [K, L·M, ...] and a carry
        [K, M, H].
        """
        first = rows.unflatten(1, (self.length, -1))[:, 0]
        carry = {name: part[first] for name, part in self.carry.items()}
        if CLOCK in carry:
            carry[CLOCK] = self.carry[CLOCK][rows]
        return Seen(self.obs.at(rows), self.is_first[rows], carry)


class Agent(ActorCritic):
    """Recurrent actor-critic; the input of its recurrent cell is the encoded observation and the previous action.

    Args:
        config: config of the algorithm.
        spec: observation and action spaces of the environment.
        distribution: config key `distribution.type`, the policy distribution: auto, discrete, normal or tanh_normal.
        rng: CPU generator for the initialization.

    Attributes:
        recurrent: True.
    """

    recurrent = True

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__(config, spec, distribution, rng)
        self.history, self.action = self.history | {ACTION: Window(1)}, spec.action
        self.forgets, self.period = config.reset_recurrent_state_on_done, config.steps_per_state_reset

    def core(self, config: Config, spec: EnvSpec, rng: torch.Generator) -> int:
        """Build the recurrent cell and the layers before and after it; return the number of output features."""
        features = self.encoder.output_size + spec.action.flat_size
        self.before = MLP(features, config.rnn.pre_rnn_mlp.layers, rng)
        self.cell = CELLS[config.rnn.cell](self.before.output_size, config.rnn.lstm.hidden_size, rng)
        self.after = MLP(self.cell.output_size, config.rnn.post_rnn_mlp.layers, rng)
        return self.after.output_size

    def unroll(self, seen: Seen) -> tuple[Policy, Tensor, CellState]:
        """Process M sequences of L rows (time steps).

        Return the policy (a distribution over actions [L·M, A]), the values [L·M], and the carry (recurrent state)
        after the last row of each sequence.
        """
        obs, is_first, carry = seen
        prev_action = flatten_actions(obs[ACTION], self.action, 1).masked_fill(is_first.unsqueeze(-1), 0)
        forget = is_first if self.forgets else torch.zeros_like(is_first)
        clock, state = carry.get(CLOCK), {name: part for name, part in carry.items() if name != CLOCK}
        if clock is not None:
            forget = forget | (clock == 0)
        if self.model is not None:
            features, value, state = self.model.unroll({**obs, ACTION: prev_action}, forget, state)
        else:
            features = self.before(torch.cat([self.encoder(obs), prev_action], -1))
            h, state = self.cell(features, forget, state)
            features = self.after(h)
            value = self.critic(features).squeeze(-1)
        if clock is not None and self.period is not None:
            clock = torch.where(forget, 1, clock + 1) % self.period
            state = {**state, CLOCK: clock.unflatten(0, (-1, next(iter(state.values())).shape[0]))[-1]}
        return self.policy(features, obs), value, state

    def forward(self, obs: Seen) -> tuple[Policy, Tensor]:
        """Return the policy (a distribution over actions [L·M, A]) and the values [L·M] of M sequences of L rows.

        Only the carry (recurrent state) before the first row of a sequence is an input. The carries of the other rows
        are recomputed with the current weights.
        """
        policy, value, _ = self.unroll(obs)
        return policy, value

    def initial(self, batch_size: int) -> CellState:
        """Return the initial carry (recurrent state), name -> [B, H]; zeros, unless `algo.model` defines it.

        If the config sets `sequences_per_state_reset`, the carry includes CLOCK -> [B] int64.
        """
        carry = (self.model or self.cell).initial(batch_size)
        if self.period is None:
            return carry
        device = next(iter(carry.values())).device
        return {**carry, CLOCK: torch.zeros(batch_size, dtype=torch.int64, device=device)}

    def act(
        self, carry: CellState, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[CellState, Tensor, dict[str, Tensor]]:
        """Choose actions for B environments.

        Args:
            carry: recurrent state before this time step, name -> [B, H].
            obs: key -> observations [B, ...].
            is_first: [B] bool; True for the first time step of an episode, before which the carry is reset.
            rng: random stream for sampling; may be None if `greedy` is true.
            greedy: choose the most likely action instead of sampling.

        Returns:
            The next carry; actions [B, A]; and extra outputs (`Trajectory.extras`): `logprob` [B], the log-probability
            of the action, `value` [B], the prediction of the critic, and the tensors of the argument `carry`, which
            training needs.
        """
        policy, value, after = self.unroll(Seen(obs, is_first, carry))
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return after, action, {"logprob": policy.logprob(action), "value": value, **carry}


class Learner(ppo.Learner):
    """Recurrent PPO learner: PPO with minibatches of sequences."""

    agent_class = Agent
    config: Config

    def prepare_obs(self, batch: Batch) -> tuple[SequenceRows, Seen]:
        """Return the agent's inputs at the time steps 0 to T-1 of a rollout [T, B], and its input at time step T.

        The inputs include the carries (recurrent states) that were stored during data collection.
        """
        obs, last_obs = gather_history(batch, self.agent.history, self.agent.keys)
        steps, last = batch.steps, batch.last
        carry = {name: steps.extras[name].flatten(0, 1) for name in last.carry}
        rows = SequenceRows(obs, steps.is_first.flatten(0, 1), carry, self.config.sequence_length)
        # As in rl8, the clock does not reset the carry with which the value after the rollout is predicted.
        no_reset = {name: torch.ones_like(part) for name, part in last.carry.items() if name == CLOCK}
        return rows, Seen(last_obs, last.is_first, last.carry | no_reset)

    def draw(self, weight: Tensor, rng: np.random.Generator | SortKeyStream) -> tuple[Tensor, Tensor]:
        """Assign the sequences of a rollout to minibatches of M sequences, in each epoch.

        M is the number of sequences divided by `per_rank_num_batches`, rounded up. The order is random, and new in each
        epoch, unless `shuffle` is false.

        Args:
            weight: [T, B]; weights of the rows (time steps). Rows of weight 0 do not contribute to the loss.
            rng: generator that draws the orders.

        Returns:
            Row indices t·B + b of each minibatch, [epochs, minibatches, L·M] int64, and the weights of these rows,
            which have the same shape.
        """
        config, (length, width) = self.config, weight.shape
        cut, own = cut_sequences(length, width, config.sequence_length, weight.device)
        weight = weight.flatten()[cut] * own  # [S, L]
        size = math.ceil(len(cut) / config.per_rank_num_batches)
        order, epochs, group = rng if config.shuffle else None, config.update_epochs, config.accumulate_minibatches
        by_env = weight.amax(-1).view(-1, width)
        shortest = length // (len(cut) // width)  # number of rows
        chosen, counted = minibatches(by_env, size, epochs, group, order, self.ranks, shortest)
        weight = weight[chosen] * counted.unsqueeze(-1)  # [epochs, minibatches, M, L]
        return cut[chosen].transpose(2, 3).flatten(2), weight.transpose(2, 3).flatten(2)


def build(context: Context[Config]) -> tuple[Learner, Rollout, TrainingSchedule]:
    """Build the learner, the rollout buffer and the training schedule of a run.

    The initial weights are random; they depend only on the seed of the run (`seed`).
    """
    return Learner(context), Rollout(), TrainingSchedule(context.algo.step_limit, context.algo.rollout_steps)
