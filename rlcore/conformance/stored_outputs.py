"""Check of agent outputs that a replay buffer stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

from rlcore.config.groups import RunConfig
from rlcore.conformance.trainings import fresh, run
from rlcore.data.replay import Replay
from rlcore.functional.tree import map_leaves
from rlcore.store.checkpoint import nested_state
from rlcore.types import Batch

CARRY = "the carry"


def stored_agent_outputs_are_used(config: RunConfig) -> None:
    """Check that updates use all outputs of the agent that a `Replay` stores: the carry, and extras such as `value`.

    Updates must read them, and replace extras by newer ones, because the stored ones are from an older agent. If an
    extra must not be replaced, such as the log-probability of an action, list it in `Replay(..., fixed_extras=[...])`;
    this check then only requires that updates read it.
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
        f"the replay buffer stores {_list(stale)} of an older agent, and no update replaces it by a newer one; call "
        "batch.write_back in update, or list it in Replay(..., fixed_extras=[...]) if it must not be replaced"
    )


def _updated(config: RunConfig, state: tuple[bytes, bytes], batch: Batch) -> tuple[bytes, bytes]:
    """Return the state of a learner after an update with this batch. The replay buffer is not changed."""
    learner = fresh(config).learner
    learner.load_state_dict(nested_state.decode(*state))
    learner.update(dataclasses.replace(batch, write_back=lambda extras: None), np.random.default_rng(0))
    return nested_state.encode(learner.state_dict())


def _changed(batch: Batch, name: str) -> Batch:
    """Return the batch with changed values of the extra `name`, or of the carry."""
    steps = batch.steps
    if name == CARRY:
        return dataclasses.replace(batch, steps=dataclasses.replace(steps, carry=map_leaves(_change, steps.carry)))
    extras = steps.extras | {name: _change(steps.extras[name])}
    return dataclasses.replace(batch, steps=dataclasses.replace(steps, extras=extras))


def _change(value: Tensor) -> Tensor:
    """Add 1 to floats; reverse the order of integers and booleans, because integers can be indices."""
    return value + 1 if value.is_floating_point() else value.flip([*range(value.dim())][:2]).clone()


def _list(names: set[str]) -> str:
    return ", ".join(name if name == CARRY else f"the extra {name!r}" for name in sorted(names))
