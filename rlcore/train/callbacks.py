"""Callbacks: objects of a plugin that are called during training, for example to log metrics or to end training.

    from rlcore.train.callbacks import Callback, RunFacts

    class StopAfter(Callback):
        def __init__(self, iterations: int) -> None:
            self.iterations, self.count = iterations, 0

        def on_iteration(self, run: RunFacts) -> None:
            self.count += 1
            run.log("Mine/count", self.count)
            if self.count >= self.iterations:
                run.request_stop(f"{self.count} iterations")

The config key `callbacks` names the class: `plugins=[mine] 'callbacks=[{_target_: mine:StopAfter, iterations: 5}]'`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore.config.callbacks import may_log

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig


class Callback:
    """Base class of callbacks. A subclass overrides the methods that it needs; a class without this base works too.

    The methods are called in the process that trains, and on rank 0 only. They cannot change training: before each
    call, the global random generators of torch, NumPy and Python get a seed that depends on the seed of the run, the
    policy step and the method. After the call, these generators and the global settings of torch are restored.

    The attributes of a callback are its state, which checkpoints store. They must be JSON values. Otherwise define
    `state_dict()`, which returns such values, and `load_state_dict(state)`.

    Attributes:
        changes_training: True if the callback may change training. `run.trainer` is then the trainer, and the state may
            contain tensors and NumPy arrays.
    """

    changes_training: ClassVar[bool] = False

    def on_iteration(self, run: RunFacts) -> None:
        """Called after each iteration: a rollout and its gradient steps."""

    def on_evaluation(self, run: RunFacts) -> None:
        """Called after each evaluation during training, with `run.evaluation`; not after the final evaluation."""

    def on_checkpoint(self, run: RunFacts) -> None:
        """Called after each checkpoint that the config requires, with `run.checkpoint`.

        The state of the callback in this checkpoint is that before the call. A run that resumes from it repeats the
        call. Checkpoints after a signal or a failure cause no call.
        """

    def on_end(self, run: RunFacts) -> None:
        """Called at the end of training, with `run.status` and `run.reason`, before the final evaluation.

        It is also called if training is interrupted by a signal or fails, but not if its process is killed.
        """


@dataclass
class CallRecord:
    """Requests of a callback in one call.

    Attributes:
        taken: names of metrics that cannot be logged.
        logged: metric -> value.
        reasons: arguments of `request_stop`.
        open: False after the call.
    """

    taken: Collection[str] = ()
    logged: dict[str, float] = field(default_factory=dict[str, float])
    reasons: list[str] = field(default_factory=list[str])
    open: bool = True


@dataclass(frozen=True)
class RunFacts:
    """Facts of a training that a callback receives, and its requests. All values are copies.

    Attributes:
        name: name of the run; None in a library trainer without a folder.
        directory: directory of the run; None in a library trainer without a folder.
        config: config of the training.
        policy_steps: number of policy steps so far, of all environments and ranks.
        env_steps: number of actions so far.
        updates: number of gradient steps so far.
        iteration: number of iterations so far.
        total_steps: number of policy steps of the whole training; None if it ends only with a stop condition.
        metrics: means over the last iteration, and the values that callbacks logged in it.
        evaluation: statistics of the evaluation, such as mean, std, ci95, episodes and returns, in `on_evaluation`.
        checkpoint: path of the checkpoint, in `on_checkpoint`.
        status: finished, stopped_early, dry_run, pruned, interrupted or failed, in `on_end`.
        reason: reason for the end, in `on_end`: a description of the stop condition, the error, or the status.
    """

    name: str | None
    directory: Path | None
    config: RunConfig
    policy_steps: int
    env_steps: int
    updates: int
    iteration: int
    total_steps: int | None
    metrics: Mapping[str, float]
    evaluation: Mapping[str, Any] | None = None
    checkpoint: Path | None = None
    status: str | None = None
    reason: str | None = None
    _record: CallRecord = field(default_factory=CallRecord, repr=False)
    _trainer: Any = field(default=None, repr=False)

    def log(self, name: str, value: float) -> None:
        """Add a metric of this policy step, which all loggers receive.

        Values of iterations are reduced to one value for each `metric.log_every` policy steps, by default their mean.

        Args:
            name: name of the metric, for example `Mine/entropy`. It cannot be the name of a metric of the training, and
                cannot begin with Evaluation/, Grads/, Loss/, Rewards/, Test/ or Time/.
            value: a finite number.

        Raises:
            ValueError: The name is empty, reserved or used by another metric, or the value is not finite.
        """
        self._require_open(f"log({name!r}, ...)")
        number = float(value)
        if name in self._record.taken or not may_log(name):
            raise ValueError(
                f"log({name!r}, {number}): the name is that of a metric of the training; choose another one"
            )
        if not math.isfinite(number):
            raise ValueError(f"log({name!r}, {number}): the value must be a finite number")
        self._record.logged[name] = number

    def request_stop(self, reason: str) -> None:
        """End training as a stop condition does, after this iteration; no effect in `on_end`.

        Args:
            reason: short description, which is part of `stopped_by` in the summary of the run.
        """
        self._require_open("request_stop(...)")
        self._record.reasons.append(str(reason))

    @property
    def trainer(self) -> Any:
        """The trainer (`rlcore.train.trainer.Trainer`), for a callback with `changes_training = True`.

        Raises:
            PermissionError: The class of the callback does not have `changes_training = True`.
        """
        if self._trainer is None:
            raise PermissionError("run.trainer requires the class attribute changes_training = True of the callback")
        return self._trainer

    def _require_open(self, call: str) -> None:
        if not self._record.open:
            raise RuntimeError(f"{call} was called after the method of the callback had returned")
