"""Trainer of a run directory: training with checkpoints, evaluations, an event log and resuming."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.compiled.when_to_compile import EAGER, decide
from rlcore.errors import CallbackError, RunError
from rlcore.evaluation.play import OnProgress
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.compare import tensor_digests
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.history import history
from rlcore.store.retry import retry
from rlcore.store.series import evaluation_means, info_means
from rlcore.system.training_clock import wall
from rlcore.train.arithmetic import count
from rlcore.train.boundary import Boundary, boundary_at, is_scheduled, next_stop, stop_reason
from rlcore.train.components import check_finite
from rlcore.train.extension import check_extended, use_new_settings
from rlcore.train.fingerprint import fingerprint
from rlcore.train.initial_weights import load_initial_weights
from rlcore.train.metrics import MetricsWindow
from rlcore.train.ranks import VARIABLE, WorkerRanks
from rlcore.train.resource_check import check_resources
from rlcore.train.resume import check_resumed
from rlcore.train.resume_point import ResumePoint
from rlcore.train.run_log import RunLog
from rlcore.train.run_progress import RunProgress, spell_duration
from rlcore.train.stop_conditions import StopConditions
from rlcore.train.trainer import Trainer
from rlcore.types import Episodes, Metrics

Progress = Callable[[dict[str, Any]], None]
log = logging.getLogger(__name__)


class RunTrainer:
    """Trainer of a run directory. The config of the run determines when checkpoints and evaluations are due.

    Args:
        run: run directory with config.yaml and env_card.json (measured properties of the environment).

    Raises:
        UserError: If this machine lacks resources that the config needs, or if the checkpoints of the run were trained
            with other config values.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        config, card = dataclasses.replace(config_of(run), run_dir=str(run.path)), run.read_card()
        if config.fabric.ranks > 1 and VARIABLE not in os.environ:  # before worker ranks start; `Trainer` checks 1 rank
            check_resources(config, EnvSpec.from_json(card["spec"]), run.path, begun=True, command=True)
        self.worker_ranks = WorkerRanks(run, config)
        start = config.checkpoint.resume_from or config.checkpoint.extend_from
        earlier = ResumePoint.find(run, start)
        compiled = decide(
            config, earlier and earlier.fingerprint, lambda: count(config, EnvSpec.from_json(card["spec"]))
        )
        with self.worker_ranks.translate_failures():
            self.training = Trainer(config, card, compiled=compiled != EAGER, command=True)
        self.config, self.card, self.events = config, card, RunLog(run.events)
        self.learner, self.collector, self.envs = self.training.learner, self.training.collector, self.training.envs
        self.fingerprint = fingerprint(config, self.training.fabric.device, card["tier"], compiled)
        extends = earlier is not None and not earlier.own and config.checkpoint.extend_from is not None
        if earlier is not None:
            (check_extended if extends else check_resumed)(earlier, self.fingerprint, config)
        self.window = MetricsWindow(config.metric, config.env.info_keys)
        self.progress = RunProgress(self.training)
        self.owed: list[str] = []
        self.callbacks = self.training.callbacks
        self.callbacks.directory = run.path
        self.failure: CallbackError | None = None  # of a callback after an iteration, which ends training
        self._checkpoint_due = False  # True until `on_checkpoint` is called at this policy step
        self._resumed_from: Path | None = None  # checkpoint whose calls of callbacks must be repeated
        self.stop = StopConditions.from_config(config.stop, config.env.info_keys, self.callbacks.requests)
        self.scores, self.infos = evaluation_means(history(run.events).evaluations)
        self.first = checkpoint.policy_steps(Path(start)) if start else -1  # the best checkpoint is a later one
        self.interrupted = False
        self._updates_before = 0  # gradient steps of the run that this run extends; they do not count in a dry run
        self._start(earlier)
        if earlier is not None and extends:
            use_new_settings(self.training, earlier.fingerprint["learning"], self.fingerprint["learning"])
            self._updates_before = self.learner.updates

    # Resuming ---------------------------------------------------------------------------------------------------------

    def _start(self, earlier: ResumePoint | None) -> None:
        """Load the checkpoint `earlier`. If it is None, load `init_from` and `buffer.load_from`, if they are set."""
        if earlier is not None:
            with earlier.reading():
                self._continue(earlier.learning, earlier.bookkeeping)
            self._updates_before = earlier.bookkeeping.get("updates_before", 0)
            if not earlier.own:
                self._drop_requests()
            self._resumed_from = earlier.path if self.callbacks else None
            if earlier.own and self.training.ranks.rank == 0:
                self.events.warn_of_lost(earlier.bookkeeping["logged"], self.policy_steps)
                self.events.append("resume", **self.progress.moment())
            return
        load_initial_weights(self.training)

    def _continue(self, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> None:
        self.training.load_state_dict(learning)
        self.window.load_state_dict(bookkeeping["window"])
        self.progress.load_state_dict(bookkeeping)
        # The log may have lost events because of a disk fault, and may have events after this checkpoint.
        kept = {int(steps): float(score) for steps, score in bookkeeping["scores"].items()}
        self.scores = kept | self.scores
        self.owed = [] if self.policy_steps in self.scores else bookkeeping["owed"]
        evaluated = {steps: score for steps, score in self.scores.items() if steps <= self.policy_steps}
        self.infos = {int(steps): info for steps, info in bookkeeping.get("infos", {}).items()} | self.infos
        self.stop.load_state_dict(bookkeeping.get("stop", {}), evaluated, self.infos)
        if "info_check" in bookkeeping:
            self.training.info_check.load_state_dict(bookkeeping["info_check"])
        if self.callbacks:
            stored = bookkeeping.get("callbacks", {})
            self.callbacks.load_state_dict(stored)
            self._checkpoint_due = stored.get("checkpoint_due", False)

    # Training ---------------------------------------------------------------------------------------------------------

    @property
    def policy_steps(self) -> int:
        """Number of rows collected so far; the unit of all schedules, and the name of checkpoints."""
        return self.training.policy_steps

    @property
    def iterations(self) -> int:
        """Number of finished iterations."""
        return self.training.iterations

    def advance(self, on_progress: Progress, on_batch: OnProgress | None = None) -> Boundary:
        """Train to the next boundary.

        Args:
            on_progress: called after each iteration with the result of `RunProgress.facts`.
            on_batch: called before each batch of an iteration with the number of finished batches and the total
                (`Buffer.due`).

        Returns:
            The boundary, with the checkpoint and evaluation that are due. If the previous process was killed at a
            boundary before its evaluation, the first call does not train and returns that boundary.
        """
        self._repeat_calls()
        reason = self._reason()
        if self.owed or reason is not None:
            due, self.owed = tuple(self.owed), []
            return Boundary(self.policy_steps, due, reason is not None, reason)
        start, began = self.policy_steps, wall()

        def on_iteration(metrics: list[Metrics]) -> bool:
            nonlocal began
            episodes, stop = self._exchange()
            self._account(metrics, episodes, wall() - began, on_progress)
            began = wall()
            return self._agree(stop if self.training.ranks.size > 1 else self._must_stop)

        until = next_stop(self.config, start)
        self.worker_ranks.send(f"advance {until}")
        with self.progress.stopwatch.running(), self.worker_ranks.translate_failures():
            self.training.advance(until, on_iteration, on_batch)
        boundary = boundary_at(self.config, start, self.policy_steps, self._reason())
        # If training is interrupted here, the resumed process starts with this evaluation.
        self.owed = ["evaluate"] if "evaluate" in boundary.due else []
        self._checkpoint_due = "checkpoint" in boundary.due
        if self.failure is not None:
            raise self.failure
        return boundary

    def advance_worker(self, until: int) -> None:
        """Train to `until` policy steps on a worker rank; only rank 0 writes."""

        def on_iteration(metrics: list[Metrics]) -> bool:
            return self._agree(self._exchange()[1])

        self.training.advance(until, on_iteration)

    @property
    def _must_stop(self) -> bool:
        """True if a signal, or the first gradient step of a dry run, ends the loop before its next boundary."""
        return self.interrupted or self.config.is_tried(self._updates)

    @property
    def _updates(self) -> int:
        """Number of gradient steps of this run, without those of a run that it extends."""
        return self.learner.updates - self._updates_before

    def _exchange(self) -> tuple[Episodes, bool]:
        """Exchange finished episodes and stop requests between all ranks.

        Return the episodes of all ranks since the last call, and True if at least one rank must stop. The result is
        equal on all ranks.
        """
        own = Episodes.of(self.envs.pop_episodes())
        gathered = self.training.ranks.gather(([own.env_index, own.ret, own.length, own.info], self._must_stop))
        episodes = Episodes()
        for columns, _ in gathered:
            episodes.extend(*columns)
        return episodes, any(stop for _, stop in gathered)

    def _agree(self, stop: bool) -> bool:
        """Return True if `stop` is True or, on rank 0, a stop condition holds or a callback has failed.

        The result is equal on all ranks.
        """
        met = self.stop.reason is not None or self.failure is not None
        if self.training.ranks.size > 1 and self.stop.reads_training:
            met = any(self.training.ranks.gather(met))
        return stop or met

    def _account(self, metrics: list[Metrics], episodes: Episodes, seconds: float, on_progress: Progress) -> None:
        self.progress.add_returns(episodes.ret)
        collected = self.collector.seconds
        self.progress.log_pace(len(metrics), seconds - collected)
        metrics = [*metrics, self.training.metrics()]
        self.window.add(metrics, episodes)
        if self.stop.reads_training:
            self._check_stop_conditions(metrics, episodes)
        self.window.seconds["collect"] += collected
        self.window.seconds["train"] += seconds - collected
        last = self._reason() is not None
        self.training.info_check.add(episodes, last)
        if self.window.due(self.policy_steps) or last:
            with self._name_last_checkpoint():
                point = self.window.close(self.policy_steps, self.learner.updates)
            if self.config.metric.log_level:
                self.events.note("metrics", **self.progress.moment(), values=point, **self.progress.clock())
        on_progress(self.progress.facts())

    def _check_stop_conditions(self, metrics: list[Metrics], episodes: Episodes) -> None:
        """Call the callbacks, then the stop conditions, with the means of an iteration's metrics."""
        with self._name_last_checkpoint():
            means = self.training.mean_metrics(metrics, episodes)
        if self.callbacks:
            try:
                logged = self.callbacks.on_iteration(means)
            except CallbackError as error:  # raised at the end of the loop, which all ranks must reach
                self.failure, logged = error, {}
            self.window.add([logged], ())
            means |= logged
        self.stop.add_iteration(means, **self.progress.moment(), updates=self.learner.updates)

    def _reason(self) -> str | None:
        return stop_reason(self.config, self.iterations, self._updates, self.stop.reason)

    # Saving and evaluation --------------------------------------------------------------------------------------------

    @property
    def savable(self) -> bool:
        """True if a checkpoint can be written after every iteration, for example after a signal.

        False if the environment can only resume exactly from scheduled checkpoints, which truncate unfinished episodes
        (tier "boundary").
        """
        return self.card["tier"] != "boundary"

    def save(self, call: bool = True) -> dict[str, Any]:
        """Write a checkpoint; return its path, policy_steps, env_steps and digest.

        If `call` is True and the config requires this checkpoint, the callbacks are called afterwards. Raises RunError
        if weights are not finite.
        """
        self.worker_ranks.send("save")
        with self.worker_ranks.translate_failures():
            learning = self.training.state_dict(self.run.checkpoints)
        with self._name_last_checkpoint():
            self.window.check_finite(self.policy_steps, self.learner.updates)
            check_finite(learning["learner"], self.policy_steps)
        bookkeeping = {
            "fingerprint": self.fingerprint,
            "window": self.window.state_dict(),
            "owed": self.owed,
            "scores": self.scores,
            "infos": {steps: info for steps, info in self.infos.items() if info},
            "info_check": self.training.info_check.state_dict(),
            "stop": self.stop.state_dict(),
            **self._callbacks_state(),
            "logged": self.events.counts,
            **self.progress.state_dict(),
            "updates": self.learner.updates,
            **({"updates_before": self._updates_before} if self._updates_before else {}),
            "transferable_components": [*self.learner.transferable_components],
            "env_steps": self.training.env_steps,
            "time": time.time(),
        }
        retry(self.events.sync)
        scheduled = is_scheduled(self.config, self.policy_steps)
        path = retry(
            lambda: checkpoint.save(self.run.checkpoints, self.policy_steps, learning, bookkeeping, scheduled=scheduled)
        )
        checkpoint.prune(self.run, self.config.checkpoint.keep_last, path)
        digest = checkpoint.manifest(path)["digest"]
        saved = {"path": str(path.relative_to(self.run.path)), **self.progress.moment(), "digest": digest}
        tensors = tensor_digests(learning)  # logged, so that pruned checkpoints can still be compared
        self.events.note("checkpoint", **saved, tensors=tensors)
        if call:
            self._call_on_checkpoint(path)
        return saved

    def describe_lost_work(self, done: int, total: int, left: float) -> str:
        """Return a message about the training that is lost because an iteration was interrupted.

        A checkpoint can only store complete iterations.

        Args:
            done: number of finished gradient steps of the iteration.
            total: number of all gradient steps of the iteration.
            left: seconds that the remaining gradient steps would take.

        Returns:
            The message.
        """
        newest = next(checkpoint.newest_first(self.run.checkpoints), None)
        saved, where = (checkpoint.policy_steps(newest), "its last checkpoint") if newest else (0, "the beginning")
        return (
            f"interrupted after {done:,} of {total:,} gradient steps of an iteration, {spell_duration(left)} before "
            f"its end: the run resumes from policy step {saved:,} of {self.policy_steps:,}, {where}"
        )

    def evaluate(self, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Evaluate the current policy with greedy actions, log the result, and return the event.

        If no earlier mean return of this run is higher, the checkpoint at this policy step becomes its best one.
        """
        self._repeat_calls()
        greedy = self.training.evaluate(on_progress=on_progress)
        earlier = [score for steps, score in self.scores.items() if self.first < steps < self.policy_steps]
        current = checkpoint.find(self.run.checkpoints, self.policy_steps)
        if current is not None and greedy["mean"] >= max(earlier, default=-math.inf):
            retry(lambda: checkpoint.name_best(self.run, current))
        self.scores[self.policy_steps], self.infos[self.policy_steps] = greedy["mean"], info_means(greedy)
        self.stop.add_evaluation(self.policy_steps, greedy["mean"], self.infos[self.policy_steps])
        self.owed = []
        clock: dict[str, Any] = self.progress.clock()
        event = self.events.note("evaluation", **self.progress.moment(), final=False, greedy=greedy, **clock)
        self._call_on_evaluation(greedy)
        return event

    # Callbacks --------------------------------------------------------------------------------------------------------

    def _repeat_calls(self) -> None:
        """Repeat the calls of callbacks after the checkpoint from which the run resumed: it does not contain them."""
        if (path := self._resumed_from) is None:
            return
        self._resumed_from = None
        self._call_on_checkpoint(path)
        if (
            event := history(self.run.events).last("evaluation", final=False, policy_steps=self.policy_steps)
        ) is not None:
            self._call_on_evaluation(event["greedy"])

    def _call_on_checkpoint(self, path: Path) -> None:
        if self.callbacks and self._checkpoint_due:
            self._checkpoint_due = False
            self._note_logged("on_checkpoint", self.callbacks.call("on_checkpoint", checkpoint=path.absolute()))

    def _call_on_evaluation(self, greedy: Mapping[str, Any]) -> None:
        if self.callbacks and self.callbacks.evaluated < self.policy_steps:
            # As in the event log, from which a resumed run reads it.
            self._note_logged("on_evaluation", self.callbacks.on_evaluation(json.loads(json.dumps(greedy))))
            self.stop.warn_of_missing()

    def _drop_requests(self) -> None:
        """Drop the requests of callbacks to end training: they ended the run from which this run starts."""
        if self.callbacks.requests is not None:
            self.callbacks.requests.reasons = {}

    def _note_logged(self, method: str, values: dict[str, float]) -> None:
        if self.policy_steps == self.first:  # the calls of the other run's last policy step are repeated
            self._drop_requests()
        if not values:
            return
        self.stop.update(values)
        if self.config.metric.log_level:
            self.events.note("callback", **self.progress.moment(), method=method, values=values)

    def _callbacks_state(self) -> dict[str, Any]:
        if not self.callbacks:
            return {}
        return {"callbacks": {**self.callbacks.state_dict(), "checkpoint_due": self._checkpoint_due}}

    def end(self, status: str, reason: str | None) -> None:
        """Call the callbacks at the end of training."""
        if self.callbacks:
            self._note_logged("on_end", self.callbacks.call("on_end", status=status, reason=reason or status))
            if status in COMPLETE:
                self.stop.warn_of_missing(ended=True)

    @contextmanager
    def _name_last_checkpoint(self) -> Iterator[None]:
        """Context manager that adds the path of the last checkpoint to RunErrors about non-finite values.

        All values in that checkpoint are finite, because other states are not saved.
        """
        try:
            yield
        except RunError as error:
            last = next(iter(checkpoint.newest_first(self.run.checkpoints)), None)
            saved = "no checkpoint yet" if last is None else f"the last good checkpoint is {last}"
            raise RunError(f"{error}; {saved}") from None

    def close(self) -> None:
        """Close the environments and end the worker ranks."""
        self.worker_ranks.close()
        self.training.close()
