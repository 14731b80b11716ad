"""The memory of an algorithm that learns from one, and the plan of its run, as the keys of both say."""

from __future__ import annotations

from fractions import Fraction

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sampler
from rlcore.types import Context, Plan


def make_memory(context: Context, sampler: Sampler, rows: int = 0, before: int = 0) -> tuple[Replay, Plan]:
    """A memory that owes what `algo.replay_ratio` says, and the plan beside it.

    Args:
        context: its `algo` is a `ReplayConfig`.
        sampler: what of the memory a gradient step learns from.
        rows: of every environment, before which nothing is owed.
        before: rows that come along in front of each sequence.

    Returns:
        The two.
    """
    config: ReplayConfig = context.config.algo
    width = context.num_envs * context.ranks.size
    replay = Replay(
        context,
        sampler,
        size=config.rows(context.config.buffer.size, width),
        batch_size=config.per_rank_batch_size,
        ratio=Fraction(str(config.replay_ratio)) / context.ranks.size,
        starts=config.quiet_steps(width, rows),
        pretrain=0 if context.config.dry_run else config.per_rank_pretrain_steps,  # it asks whether one step works
        every=config.train_every or 1,
        end=config.budget(width),
        online=context.config.buffer.online,
        before=before,
        device=context.fabric.device if context.config.buffer.on_device else "cpu",
    )
    return replay, Plan(config.total_steps, config.collect_length, config.random_steps(width))
