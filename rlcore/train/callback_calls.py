"""Calls of the callbacks of a training, and their state in its checkpoints.

A callback may neither change training nor end it by an exception: see `rlcore.train.callbacks.Callback`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlcore import streams
from rlcore.config.callbacks import KEY, METHODS, mappings, name_of, overridden_methods
from rlcore.config.plugin_class import TARGET
from rlcore.config.run import RunConfig
from rlcore.errors import CallbackError, UserError
from rlcore.protocols import Learner
from rlcore.system.global_random import own_random_numbers
from rlcore.system.torch_switches import keeping_switches
from rlcore.train.callbacks import CallRecord, RunFacts
from rlcore.train.plugin_instance import State, calling, create, read_state, restore_state
from rlcore.train.stopping import StopRequests
from rlcore.types import Ranks
from rlcore.user_code import spell_error, user_code


class TrainerFacts(Protocol):
    """The attributes of a `Trainer` that callbacks need."""

    @property
    def config(self) -> RunConfig:
        """Config of the training."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Processes that train together."""
        ...

    @property
    def learner(self) -> Learner:
        """Learner, with the number of gradient steps so far."""
        ...

    @property
    def behavior_policy(self) -> Any:
        """Agent that collects data."""
        ...

    @property
    def iterations(self) -> int:
        """Number of iterations so far."""
        ...

    @property
    def policy_steps(self) -> int:
        """Number of policy steps so far."""
        ...

    @property
    def env_steps(self) -> int:
        """Number of actions so far."""
        ...

    @property
    def end(self) -> int | None:
        """Number of policy steps of the whole training; None if it ends only with a stop condition."""
        ...


@dataclass(frozen=True)
class Entry:
    """One callback of a training.

    Attributes:
        name: text by which its saved state is found again.
        shown: name of its class, for messages.
        callback: the object.
    """

    name: str
    shown: str
    callback: Any

    @property
    def changes(self) -> bool:
        """True if the callback may change training."""
        return bool(getattr(self.callback, "changes_training", False))

    def calling(self, method: str) -> AbstractContextManager[None]:
        """Return a context manager for a call of a method; exceptions become `CallbackError`s."""
        return calling(f"callback {self.shown}: {method} raised", CallbackError)


class Callbacks:
    """Callbacks of a training. They exist on rank 0 only; the other ranks learn of requests to end training.

    Args:
        training: the training.
        entries: the callbacks; () on ranks other than 0.
        names: name -> name of the class, of the callbacks of all ranks.
    """

    def __init__(self, training: TrainerFacts, entries: Sequence[Entry], names: Mapping[str, str]) -> None:
        self.training, self.entries, self.names = training, entries, names
        self.requests = StopRequests(names) if names else None
        self.directory: Path | None = None  # of the run, if there is one
        self.metrics: dict[str, float] = {}  # of the last iteration
        self.evaluated = -1  # policy steps of the last call of `on_evaluation`
        self.failed = False  # True after a failure; a state that cannot be read is then that of the last checkpoint
        self._stored: dict[str, State] = {}  # name -> state in the last checkpoint
        self._methods = [overridden_methods(type(entry.callback)) for entry in entries]

    @classmethod
    def from_config(cls, training: TrainerFacts) -> Callbacks:
        """Create the callbacks of the config key `callbacks`; raise UserError if a constructor fails."""
        stated = mappings(training.config.callbacks)
        names = {name_of(callback): str(callback[TARGET]) for callback in stated}
        entries = list[Entry]()
        for index, callback in enumerate(stated if training.ranks.rank == 0 else ()):
            shown = str(callback[TARGET])
            seed = streams.integer(training.config.seed, "callback", 0, len(METHODS), index)
            try:
                with user_code(), keeping_switches(), own_random_numbers(seed):
                    entries.append(Entry(name_of(callback), shown, create(callback, f"{KEY}[{index}]")))
            except Exception as error:
                raise UserError(f"{KEY}[{index}]={shown}: cannot be created ({spell_error(error)})") from error
        return cls(training, entries, names)

    @classmethod
    def of(cls, training: TrainerFacts, callbacks: Sequence[Any]) -> Callbacks:
        """Return the callbacks that a program passes as objects; raise UserError if one has no method."""
        entries = list[Entry]()
        for index, callback in enumerate(callbacks):
            shown = type(callback).__name__
            if not overridden_methods(type(callback)):
                raise UserError(f"run({KEY}=[...]): {shown} has none of the methods {', '.join(METHODS)}")
            entries.append(Entry(f"{shown}[{index}]", shown, callback))
        return cls(training, entries, {entry.name: entry.shown for entry in entries})

    def __bool__(self) -> bool:
        """Return True if the training has callbacks, on any rank."""
        return bool(self.names)

    # Calls ------------------------------------------------------------------------------------------------------------

    def on_iteration(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Call `on_iteration` with the means of an iteration, and return the values that the callbacks logged."""
        self.metrics = dict(metrics)
        logged = self.call("on_iteration", taken=self.metrics)
        self.metrics |= logged
        return logged

    def on_evaluation(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Call `on_evaluation` with statistics of an evaluation, and return the values that the callbacks logged."""
        self.evaluated = self.training.policy_steps
        return self.call("on_evaluation", evaluation=result)

    def call(self, method: str, *, taken: Mapping[str, float] | None = None, **facts: Any) -> dict[str, float]:
        """Call a method of all callbacks, and note their requests to end training.

        Args:
            method: one of `METHODS`.
            taken: metrics whose names the callbacks cannot use.
            **facts: further attributes of `RunFacts`.

        Returns:
            The values that the callbacks logged, by metric.

        Raises:
            CallbackError: A callback raised an exception.
        """
        logged, training = dict[str, float](), self.training
        for index, (entry, methods) in enumerate(zip(self.entries, self._methods, strict=True)):
            if method not in methods:
                continue
            record = CallRecord({**(taken or {}), **logged})
            run = self._facts(record, training if entry.changes else None, facts)
            try:
                with entry.calling(method), own_random_numbers(self._seed(METHODS.index(method), index)):
                    getattr(entry.callback, method)(run)
            finally:
                record.open = False
            if entry.changes:
                training.learner.sync_weights(training.behavior_policy)
            assert self.requests is not None
            for reason in record.reasons:
                self.requests.request(entry.name, reason)
            logged |= record.logged
        return logged

    def _facts(self, record: CallRecord, trainer: TrainerFacts | None, facts: Mapping[str, Any]) -> RunFacts:
        training = self.training
        return RunFacts(
            name=self.directory and self.directory.name,
            directory=self.directory,
            config=copy.deepcopy(training.config),
            policy_steps=training.policy_steps,
            env_steps=training.env_steps,
            updates=training.learner.updates,
            iteration=training.iterations,
            total_steps=training.end,
            metrics=dict(self.metrics),
            _record=record,
            _trainer=trainer,
            **copy.deepcopy(dict(facts)),
        )

    # State ------------------------------------------------------------------------------------------------------------

    def learning_state(self) -> State:
        """Return the states of the callbacks that may change training, which belong to the learning state.

        The result is {} if there are none.
        """
        states = {entry.name: self._read(index, entry) for index, entry in enumerate(self.entries) if entry.changes}
        return {KEY: states} if states else {}

    @staticmethod
    def select(state: Mapping[str, Any]) -> State:
        """Return the part of a learning state that `load_learning_state` reads."""
        return {KEY: state[KEY]} if KEY in state else {}

    def load_learning_state(self, state: Mapping[str, Any]) -> None:
        """Restore the states in a learning state. A callback without a state in it keeps its initial state."""
        self._restore(state.get(KEY, {}), changes=True)

    def state_dict(self) -> State:
        """Return the states of the other callbacks, and what the calls after a checkpoint need, in JSON values."""
        for index, entry in enumerate(self.entries):
            if not entry.changes:
                try:
                    self._stored[entry.name] = self._read(index, entry)
                except CallbackError:
                    if not self.failed:
                        raise
        return {"states": dict(self._stored), "metrics": dict(self.metrics), "evaluated": self.evaluated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; {} if there is none."""
        self.metrics, self.evaluated = dict(state.get("metrics", {})), state.get("evaluated", -1)
        self._restore(state.get("states", {}), changes=False)

    def _read(self, index: int, entry: Entry) -> State:
        with entry.calling("state_dict"), own_random_numbers(self._seed(len(METHODS) + 1, index)):
            return read_state(entry.callback, tensors=entry.changes)

    def _restore(self, states: Mapping[str, Any], changes: bool) -> None:
        for index, entry in enumerate(self.entries):
            if entry.changes is changes and entry.name in states:
                with entry.calling("load_state_dict"), own_random_numbers(self._seed(len(METHODS) + 2, index)):
                    restore_state(entry.callback, states[entry.name])

    def _seed(self, method: int, index: int) -> int:
        return streams.integer(self.training.config.seed, "callback", self.training.policy_steps, method, index)
