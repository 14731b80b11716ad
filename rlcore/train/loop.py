"""The one loop, for every algorithm: collect, store, update, until enough env steps are taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlcore.train.collect import Collector
from rlcore.types import Buffer, Learner, Metrics, Plan

OnIteration = Callable[[list[Metrics]], bool]


def train(
    learner: Learner,
    collector: Collector,
    buffer: Buffer,
    plan: Plan,
    rng: np.random.Generator,
    until: int,
    on_iteration: OnIteration,
) -> None:
    """Train until at least `until` policy steps are taken; an iteration is never cut.

    Args:
        learner: improved in place.
        collector: steps the environments with the learner's agent.
        buffer: between the two.
        plan: how much to collect between updates.
        rng: the learner's stream (minibatch order).
        until: policy steps, all environments and ranks together.
        on_iteration: called after each iteration with the metrics of its updates; True ends the loop.
    """
    while collector.policy_steps < until:
        before = collector.policy_steps
        buffer.extend(*collector.collect(plan.collect_length))
        if on_iteration([learner.update(batch, rng) for batch in buffer.batches(before)]):
            return
