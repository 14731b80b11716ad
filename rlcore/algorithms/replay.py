"""Build the replay buffer and the training schedule of an off-policy algorithm from its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sampler
from rlcore.spec import ArraySpec
from rlcore.types import Carry, Context, TrainingSchedule


def make_replay(
    context: Context[ReplayConfig],
    sampler: Sampler,
    rows: int = 0,
    before: int = 0,
    lead: int = 0,
    extras: Mapping[str, ArraySpec] | None = None,
    fixed_extras: Sequence[str] = (),
    carry: Carry = (),
) -> tuple[Replay, TrainingSchedule]:
    """Build the replay buffer and the training schedule of an off-policy algorithm.

    The buffer returns `algo.replay_ratio` batches per policy step.

    Args:
        context: config, environment spec, devices and ranks of the run.
        sampler: selects the transitions or sequences of a batch.
        rows: number of rows (time steps) of each environment that must be stored before the first gradient step.
        before: number of additional rows in front of each sampled sequence. An agent with an observation history (frame
            stacks, past actions) needs them for the first rows of the sequence.
        lead: number of rows at the start of each sequence on which the learner does not train.
        extras: extra outputs of the agent that are stored with each row: name -> shape and dtype for one environment.
        fixed_extras: those names in `extras` that the learner never writes back.
        carry: `agent.initial(1)` if the learner needs the agent's carry at the start of each sequence.

    Returns:
        Replay buffer and training schedule.
    """
    config = context.algo
    width = context.num_envs * context.ranks.size
    replay = Replay(
        context,
        sampler,
        size=config.rows(context.config.buffer.size, width),
        batch_size=config.per_rank_batch_size,
        ratio=Fraction(str(config.replay_ratio)) / context.ranks.size,
        starts=config.learning_starts_steps(width, rows),
        pretrain=0 if context.config.dry_run else config.per_rank_pretrain_steps,  # a dry run needs only one step
        every=config.train_every or 1,
        end=config.budget(width),
        online=context.config.buffer.online,
        before=before,
        lead=lead,
        extras=extras,
        fixed_extras=fixed_extras,
        carry=carry,
        device=context.fabric.device if context.config.buffer.on_device else "cpu",
    )
    return replay, TrainingSchedule(config.step_limit, config.collect_length, config.random_steps(width))
