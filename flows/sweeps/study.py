"""Study of a sweep: its trials and their results, the choice of the next trial, and the decision to prune a trial.

Only one process, the driver of the sweep, writes to Optuna's database. It stores a trial's parameters when they are
sampled, and the result when the trial ends. Samplers and pruners do not read the database. For each trial, they receive
a study in memory, which contains other trials as follows:

    sweep.mode=async   all earlier trials, with their current results
    sweep.mode=batch   the trials of earlier batches, with results; earlier trials of the same batch, without results

For each trial, the sampler's random numbers are seeded with (sweep.seed, number of the trial). In batch mode, a trial
therefore depends only on the seed and on the results of earlier batches. It does not depend on the order in which
workers finish, or on interruptions of the sweep.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from flows.report.command_lines import sweep_resume_command
from flows.sweeps.folder import open_storage, open_to_read, storage_errors
from flows.sweeps.plan import SweepConfig, SweepPlan
from flows.sweeps.space import Dimension, Params, to_stored
from flows.sweeps.strategies import (
    DEFAULT,
    RUNG,
    RUNGS,
    as_asked,
    ask_again,
    masked_trial,
    pruner_of,
    sampler_of,
    until,
    with_value,
)
from rlcore import streams
from rlcore.system.imports import large_imports

if TYPE_CHECKING:
    import optuna
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

SAMPLER, TRAINING, CONFIRMATION = range(3)  # random streams derived from sweep.seed
VIEW = "sweep"  # constant, because Hyperband derives a trial's bracket from the study's name


def seed_of(config: SweepConfig, stream: int, index: int) -> int:
    """Return the seed of a training run, derived from `sweep.seed`; see `Study.seeds`."""
    return streams.integer(config.seed, "sweep", stream, index)


class Study:
    """Optuna study of one sweep: its trials, stored in a database.

    Args:
        plan: plan of the sweep.
        storage: SQLAlchemy URL of the database.
        name: name of the study in the database; the study is created if it does not exist.
        only_read: storage that was opened read-only and contains the study; None opens `storage` for writing.

    Raises:
        UserError: If the database cannot be opened.
        RunError: From every method, if the database fails later.
    """

    def __init__(self, plan: SweepPlan, storage: str, name: str, only_read: BaseStorage | None = None) -> None:
        with large_imports("optuna"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.config, self.space, self._size, self._pace = plan.config, plan.space, plan.size, plan.pace
        self._default = plan.default
        self._optuna = optuna
        self._resume_command = sweep_resume_command(plan.config.name)
        self._lock = threading.Lock()  # guards reads and writes, because jobs report from threads
        self._trials: list[FrozenTrial] | None = None  # cache of the trials
        self._accepted_steps: dict[
            int, int
        ] = {}  # trial -> policy steps of the last evaluation that the pruner accepted
        with self._watch("the study cannot be opened"):
            self._database = only_read or open_storage(storage)
            create = functools.partial(optuna.create_study, direction="maximize", load_if_exists=True)
            self._study = (optuna.load_study if only_read else create)(study_name=name, storage=self._database)

    @staticmethod
    def there(plan: SweepPlan, storage: str, name: str) -> Study | None:
        """Open an existing study read-only; return None if it does not exist."""
        with storage_errors("the study cannot be read", sweep_resume_command(plan.config.name)):
            database = open_to_read(storage)
        try:
            return Study(plan, storage, name, database) if database else None
        except KeyError:
            return None

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, in the order of their numbers. They are cached until this process writes to the study.

        The cache stays valid because no other process writes to the study.
        """
        with self._lock:
            if self._trials is None:
                with self._watch("its trials cannot be read"):
                    self._trials = self._study.get_trials(deepcopy=False)
            return self._trials

    def list_unfinished(self) -> list[int]:
        """Return the numbers of the trials that have no result yet."""
        return [trial.number for trial in self.trials if not trial.state.is_finished()]

    def list_failed(self) -> list[int]:
        """Return the numbers of the trials that have failed."""
        return [trial.number for trial in self.trials if trial.state == self._optuna.trial.TrialState.FAIL]

    def copy(self, name: str) -> None:
        """Copy the study under another name. In the copy, failed trials are unfinished.

        The copy is needed to retry failed trials, because Optuna cannot change a trial that has ended.
        """
        failed = self.list_failed()
        with self._watch("its study cannot be copied"):
            if name in self._optuna.get_all_study_names(self._database):  # incomplete copy of a killed process
                self._optuna.delete_study(study_name=name, storage=self._database)
            copy = self._optuna.create_study(storage=self._database, study_name=name, direction="maximize")
            copy.add_trials([ask_again(trial) if trial.number in failed else trial for trial in self.trials])

    def delete(self) -> None:
        """Delete this study from the database, after a copy has replaced it."""
        with self._watch("the study before the copy cannot be deleted"):
            self._optuna.delete_study(study_name=self._study.study_name, storage=self._database)

    def params(self, number: int) -> Params:
        """Return the values of the varied keys in a trial: config key -> value, in the order of the search space."""
        return params_of(self.space, self.trials[number])

    def ask(self) -> int | None:
        """Sample the values of the next trial, store the trial and return its number.

        Returns None if all trials were sampled, or if the next trial belongs to a batch that cannot start yet because
        trials of an earlier batch are running.
        """
        number = len(self.trials)
        if number >= self._size or any(n < self._batch_of(number) for n in self.list_unfinished()):
            return None
        seed = streams.integer(self.config.seed, "sweep", SAMPLER, number)
        view = self._view(number, sampler_of(self.config, self.space, seed))
        if number == 0 and self._default is not None:
            view.enqueue_trial({k: to_stored(v) for k, v in self._default.items()}, user_attrs={DEFAULT: True})
        trial = view.ask()
        params: Params = {}
        for dimension in self.space:
            if dimension.present(params):
                params[dimension.key] = dimension.suggest(trial)
        with self._write():
            self._study.add_trial(
                view.get_trials(deepcopy=False)[number]
            )  # one transaction, so that a killed process does not leave an incomplete trial
        return number

    def report(self, number: int, step: int, value: float) -> bool:
        """Store the score of an evaluation of a trial, and let the pruner decide if the trial should end.

        The pruner compares the score with those of other trials after the same number of policy steps. It decides once
        for each evaluation; a repeated report returns False.

        Args:
            number: number of the trial.
            step: policy steps of the trial at the evaluation, as from `TrialIntervals.read_scores`.
            value: the score, a mean greedy return.

        Returns:
            True if the trial should be pruned.
        """
        if step <= self._accepted_steps.get(number, -1):
            return False
        trial = self.trials[number]
        if step not in trial.intermediate_values:
            with self._write():
                self._database.set_trial_intermediate_value(trial._trial_id, step, value)
        assert self._pace is not None
        pruner = pruner_of(self.config, self._pace)
        if pruner is None:
            return False
        with warnings.catch_warnings(action="ignore"):
            view = self._view(number, pruner=pruner, at=step)
            if not view.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,)):
                return False
            view.add_trial(until(self.trials[number], step))
            ends = pruner.prune(view, view.get_trials(deepcopy=False)[number])
        self._note_rungs(number, step, view.get_trials(deepcopy=False)[number].system_attrs)
        if not ends:
            self._accepted_steps[number] = step
        return ends

    def _note_rungs(self, number: int, step: int, attributes: Mapping[str, Any]) -> None:
        """Store the rungs in `attributes` that a trial has newly completed, with the current policy step.

        A rung is a number of policy steps at which the pruners `halving` and `hyperband` compare a trial with others.
        """
        trial = self.trials[number]
        noted = trial.system_attrs.get(RUNGS, {})
        new = {key: (step, value) for key, value in attributes.items() if key.startswith(RUNG) and key not in noted}
        if new:
            with self._write():
                self._database.set_trial_system_attr(trial._trial_id, RUNGS, noted | new)

    def tell(self, number: int, state: str, value: float | None = None, **notes: Any) -> None:
        """Store the result of a trial. Calls for a trial that has a result already are ignored.

        Args:
            number: number of the trial.
            state: "complete", "pruned" or "fail".
            value: value of the trial if it is complete.
            **notes: further attributes to store, such as `policy_steps`.
        """
        trial = self.trials[number]
        if trial.state.is_finished():
            return
        if state == "pruned":  # as in Optuna, the value is the last intermediate value
            value = trial.intermediate_values[max(trial.intermediate_values)]
        values = None if value is None else [value]
        states = self._optuna.trial.TrialState
        with self._write():
            for key, note in notes.items():
                self._database.set_trial_user_attr(trial._trial_id, key, note)
            self._database.set_trial_state_values(trial._trial_id, states[state.upper()], values)

    def count_fault(self, number: int) -> int:
        """Increase the stored number of machine faults that have ended a trial by 1; return the new number."""
        trial = self.trials[number]
        count = trial.user_attrs.get("faults", 0) + 1
        with self._write():
            self._database.set_trial_user_attr(trial._trial_id, "faults", count)
        return count

    def best(self) -> FrozenTrial | None:
        """Return the completed trial with the highest value (the earliest of equal ones); None if none is complete."""
        complete = [t for t in self.trials if t.state == self._optuna.trial.TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    def importance(self) -> dict[str, float]:
        """Return the importance of each varied key for being among the best of the completed trials (PED-ANOVA).

        The importances sum to 1. The result is empty if fewer than two trials are complete or all have equal values.
        """
        complete = [t for t in self.trials if t.state == self._optuna.trial.TrialState.COMPLETE]
        if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
            return {}
        with warnings.catch_warnings(action="ignore"):
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            return self._optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def seeds(self, stream: int, count: int) -> list[int]:
        """Return seeds of training runs, derived from `sweep.seed`.

        Args:
            stream: TRAINING for the runs of trials, or CONFIRMATION for the runs that compare the best trial with the
                default configuration. The two have different seeds.
            count: number of seeds.

        Returns:
            The seeds.
        """
        return [seed_of(self.config, stream, index) for index in range(count)]

    @contextmanager
    def _write(self) -> Iterator[None]:
        """Context manager that locks the study for writing and clears the cache of trials afterwards."""
        with self._lock, self._watch("the result of a trial cannot be stored"):
            yield
            self._trials = None

    def _watch(self, doing: str) -> AbstractContextManager[None]:
        return storage_errors(f"sweep {self.config.name}: {doing}", self._resume_command)

    def _batch_of(self, number: int) -> int:
        """Return the number of the first trial in the batch that contains trial `number`; 0 in async mode."""
        return number // self.config.batch * self.config.batch if self.config.mode == "batch" else 0

    def _view(
        self, number: int, sampler: BaseSampler | None = None, pruner: BasePruner | None = None, at: int | None = None
    ) -> optuna.Study:
        """Return a study in memory for the sampler or pruner that handles a trial.

        It contains the trials before `number`, with only those results that the trial may depend on (see the module's
        docstring). With `at`, their only intermediate value is their score after `at` policy steps.
        """
        with warnings.catch_warnings(action="ignore"):
            view = self._optuna.create_study(study_name=VIEW, direction="maximize", sampler=sampler, pruner=pruner)
            known = self._batch_of(number) if self.config.mode == "batch" else number
            before = self.trials[:number]
            others = [*map(masked_trial, before[:known]), *map(as_asked, before[known:])]
            if at is not None and self._pace is not None:
                score_at = functools.partial(self._pace.score_at, steps=at)
                others = [with_value(trial, at, score_at(trial.intermediate_values)) for trial in others]
            view.add_trials(others)
        return view


def params_of(space: Sequence[Dimension], trial: FrozenTrial) -> Params:
    """Return the values of the varied keys in an Optuna trial: config key -> value, in the order of the space."""
    return {d.key: d.to_config(trial.params[d.key]) for d in space if d.key in trial.params}
