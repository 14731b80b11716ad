"""Conformance check that updates use the agent outputs in the replay buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import fresh, run
from rlcore.data.replay import Replay
from rlcore.functional.tree import map_leaves
from rlcore.store.checkpoint import nested_state
from rlcore.types import Batch

CARRY = "the carry"


def stored_agent_outputs_are_used(config: RunConfig) -> None:
    """Check that updates use all outputs of the agent that the replay buffer stores.

    These are the carry (recurrent state) and the extra outputs (`Trajectory.extras`), such as `value`. An update must
    read all of them. It must also store newer extra outputs (`batch.write_back`), because the stored ones were computed
    by an older version of the agent. If an extra output must not be replaced, such as the log-probability of an action,
    list it in `Replay(..., fixed_extras=[...])`; it must then only be read.
    """
    training = fresh(config)
    buffer = training.buffer
    if not isinstance(buffer, Replay):
        return
    unread = {*buffer.extras, *([CARRY] if buffer.stores_carry else [])}
    stale = {*buffer.extras} - {*buffer.fixed_extras}
    update, write_back = training.learner.update, buffer.write_back

    def watch_update(batch: Batch, rng: np.random.Generator) -> Any:
        state = nested_state.encode(training.learner.state_dict())
        before = _updated(config, state, batch) if unread else None
        unread.difference_update([name for name in unread if _updated(config, state, _changed(batch, name)) != before])
        return update(batch, rng)

    def watch_write_back(places: np.ndarray, extras: Mapping[str, Tensor]) -> None:
        before = nested_state.encode(buffer.state_dict())
        write_back(places, extras)
        if nested_state.encode(buffer.state_dict()) != before:
            stale.difference_update(extras)

    with (
        mock.patch.object(training.learner, "update", watch_update),
        mock.patch.object(buffer, "write_back", watch_write_back),
    ):
        run(training)
    assert not unread, (
        f"the replay buffer stores {_list(unread)}, which no update reads; read it in update, or do not pass it to "
        "Replay(...)"
    )
    assert not stale, (
        f"the replay buffer stores {_list(stale)} of older agents, and no update replaces it by a newer one; call "
        "batch.write_back in update, or list it in Replay(..., fixed_extras=[...]) if it must not be replaced"
    )


def _updated(config: RunConfig, state: tuple[bytes, bytes], batch: Batch) -> tuple[bytes, bytes]:
    """Return the encoded state of a learner after one update, without a change of the replay buffer.

    Args:
        config: config of the learner.
        state: encoded state of the learner before the update.
        batch: batch of the update.

    Returns:
        The encoded state.
    """
    learner = fresh(config).learner
    learner.load_state_dict(nested_state.decode(*state))
    learner.update(dataclasses.replace(batch, write_back=lambda extras: None), np.random.default_rng(0))
    return nested_state.encode(learner.state_dict())


def _changed(batch: Batch, name: str) -> Batch:
    """Return a copy of the batch in which one stored output of the agent has different values.

    If `name` is `CARRY`, this is the carry. Otherwise it is the extra output `name` (`Trajectory.extras`).
    """
    steps = batch.steps
    if name == CARRY:
        return dataclasses.replace(batch, steps=dataclasses.replace(steps, carry=map_leaves(_change, steps.carry)))
    extras = steps.extras | {name: _change(steps.extras[name])}
    return dataclasses.replace(batch, steps=dataclasses.replace(steps, extras=extras))


def _change(value: Tensor) -> Tensor:
    """Return other values of the same shape and dtype.

    Floats are increased by 1. Integers and booleans are put in reverse order, so that indices stay in range.
    """
    return value + 1 if value.is_floating_point() else value.flip([*range(value.dim())][:2]).clone()


def _list(names: set[str]) -> str:
    return ", ".join(name if name == CARRY else f"the agent's extra output {name!r}" for name in sorted(names))
