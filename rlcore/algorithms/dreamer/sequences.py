"""Sequences on which the Dreamers learn: the batch format `Segment`, and the replay buffer that they are sampled from.

Row t of a sequence contains the observation obs[t], and the previous action, the reward and the end of the step that
led to this observation:

    t             0      1      2*     3      4          * the episode ends at obs 2, and another one starts at obs 3
    is_first      1      0      0      1      0          always 1 at row 0, unless model states are stored
    before        -      a0     a1     -      a0'        previous action; not used if is_first is 1
    reward        0      r1     r2     0      r1'        target of the reward head at state t
    terminated    0      0      1      0      0          0 at row 2 too if the episode is truncated

The model state is reset at rows with is_first = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.replay import make_replay
from rlcore.data.replay import Replay
from rlcore.data.samplers import EpisodeSequences, Sequences
from rlcore.spec import ArraySpec
from rlcore.types import Carry, Context, TrainingSchedule, Trajectory


class Segment(NamedTuple):
    """Batch of N sequences of L time steps for the losses; each tensor is [L, N, ...].

    `before` [L, N, A'] contains the previous actions as vectors (discrete actions are encoded one-hot). `state` is the
    model state [N, ...] before row 0; None = the initial state of an episode.
    """

    obs: dict[str, Tensor]
    before: Tensor
    is_first: Tensor
    reward: Tensor
    terminated: Tensor
    state: ModelState | None = None


def segment_of(steps: Trajectory, actor: LatentActor, state: ModelState | None = None) -> Segment:
    """Convert sequences from the replay buffer to a `Segment`.

    Args:
        steps: sequences [L, N]; [L + 1, N] if `state` is given.
        actor: actor, which encodes the actions as vectors.
        state: model state [N, ...] in the first row of `steps`, with which the segment starts after this row.

    Returns:
        The segment.
    """
    action = actor.flat(steps.action)
    if state is None:
        before, is_first = open_at_first_row(action, steps.is_first)
        return Segment(steps.obs, before, is_first, steps.reward, steps.terminated)
    obs = {key: value[1:] for key, value in steps.obs.items()}
    return Segment(obs, action[:-1], steps.is_first[1:], steps.reward[1:], steps.terminated[1:], state)


def open_at_first_row(action: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the previous action of each row, [L, N, A'], and `is_first` [L, N] with row 0 set to true.

    `action` [L, N, A'] contains the action that was selected in each row. It is moved to the next row; the previous
    action of row 0 is 0.
    """
    before = torch.cat([torch.zeros_like(action[:1]), action[:-1]])
    return before, torch.cat([torch.ones_like(is_first[:1]), is_first[1:]])


def memory_and_plan(
    context: Context[DreamerConfig],
    extras: Mapping[str, ArraySpec] | None = None,
    lead: int = 0,
    fixed_extras: Sequence[str] = (),
    carry: Carry = (),
) -> tuple[Replay, TrainingSchedule]:
    """Build a replay buffer from which sequences are sampled, and the training schedule.

    Args:
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).
        extras: extra outputs of the agent that are stored with each row: name -> shape and dtype for one environment.
        lead: number of additional rows at the start of each sequence; 1 if the learner starts from stored model states.
        fixed_extras: those names in `extras` that the learner never writes back.
        carry: `agent.initial(1)` if the learner needs the agent's carry at the start of each sequence.

    Returns:
        Replay buffer and training schedule.
    """
    length, buffer = context.algo.per_rank_sequence_length + lead, context.config.buffer
    sampler = EpisodeSequences(length, buffer.prioritize_ends) if buffer.type == "episode" else Sequences(length)
    return make_replay(context, sampler, rows=length, lead=lead, extras=extras, fixed_extras=fixed_extras, carry=carry)
