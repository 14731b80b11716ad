"""A sweep's study: which trials there are, what they came to, which one comes next, and which ends early.

The database is a journal that one process writes, the driver: each trial stands there whole, with its parameters, from
the moment it is asked, and what it came to from the moment it is known. Sampler and pruner never see it. They see a
view in memory, built for one trial:

    async   every trial before it, as it stands now
    batch   the trials of earlier batches, told in the order of their numbers, and of its own batch the parameters

and a sampler's random stream begins anew for each trial, from (sweep.seed, number). In batch mode a trial thus follows
from the seed and the results of earlier batches alone: not from the order in which workers finish, nor from where a
driver was killed, and after a resume nothing is drawn twice.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from flows.report.command_lines import sweep_resume_command
from flows.sweeps.known import DEFAULT, RUNG, RUNGS, as_asked, as_known, ask_anew, until, with_value
from flows.sweeps.plan import SweepPlan
from flows.sweeps.space import Dimension, Params, to_stored
from flows.sweeps.storage import open_storage, open_to_read, storage_errors
from flows.sweeps.strategies import pruner_of, sampler_of
from rlcore import streams
from rlcore.system.imports import large_imports

if TYPE_CHECKING:
    import optuna
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

SAMPLER, TRAINING, CONFIRMATION = range(3)  # streams of sweep.seed
VIEW = "sweep"  # Hyperband draws a trial's bracket from the study's name: the same for all


class Study:
    """The trials of one sweep.

    Args:
        plan: of the sweep.
        storage: SQLAlchemy's address of the database.
        name: of the study there; made where it is not.
        only_read: the database, opened to read a study that is there.

    Raises:
        UserError: the database cannot be opened.
        RunError: it could be, and now fails; from every method.
    """

    def __init__(self, plan: SweepPlan, storage: str, name: str, only_read: BaseStorage | None = None) -> None:
        with large_imports("optuna"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.config, self.space, self._size, self._pace = plan.config, plan.space, plan.size, plan.pace
        self._default = plan.default
        self._optuna = optuna
        self._go_on = sweep_resume_command(plan.config.name)
        self._lock = threading.Lock()  # at what is read and written: jobs report from threads
        self._trials: list[FrozenTrial] | None = None  # as last read
        self._judged: dict[int, int] = {}  # trial -> the evaluation at which it was last asked about
        with self._watch("the study cannot be opened"):
            self._database = only_read or open_storage(storage)
            made = functools.partial(optuna.create_study, direction="maximize", load_if_exists=True)
            self._study = (optuna.load_study if only_read else made)(study_name=name, storage=self._database)

    @staticmethod
    def there(plan: SweepPlan, storage: str, name: str) -> Study | None:
        """The study as it is, to be read and nothing else; None where there is none."""
        with storage_errors("the study cannot be read", sweep_resume_command(plan.config.name)):
            database = open_to_read(storage)
        try:
            return Study(plan, storage, name, database) if database else None
        except KeyError:
            return None

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that were asked, by number; read again when this process, the only one that writes, has written."""
        with self._lock:
            if self._trials is None:
                with self._watch("its trials cannot be read"):
                    self._trials = self._study.get_trials(deepcopy=False)
            return self._trials

    def list_unfinished(self) -> list[int]:
        """Numbers of the trials that were asked and came to nothing yet."""
        return [trial.number for trial in self.trials if not trial.state.is_finished()]

    def list_failed(self) -> list[int]:
        """Numbers of the trials that have failed."""
        return [trial.number for trial in self.trials if trial.state == self._optuna.trial.TrialState.FAIL]

    def copy(self, name: str) -> None:
        """Copy the study, with failed trials as they were when asked: of one that has ended Optuna changes nothing."""
        failed = self.list_failed()
        with self._watch("its study cannot be copied"):
            if name in self._optuna.get_all_study_names(self._database):  # half a copy, of a process that was killed
                self._optuna.delete_study(study_name=name, storage=self._database)
            copy = self._optuna.create_study(storage=self._database, study_name=name, direction="maximize")
            copy.add_trials([ask_anew(trial) if trial.number in failed else trial for trial in self.trials])

    def delete(self) -> None:
        """Delete the study, of which there is a copy."""
        with self._watch("the study before the copy cannot be deleted"):
            self._optuna.delete_study(study_name=self._study.study_name, storage=self._database)

    def params(self, number: int) -> Params:
        """The values of a trial, in the order of the space."""
        return params_of(self.space, self.trials[number])

    def ask(self) -> int | None:
        """The next trial; None where all were asked, or where its batch waits for the one before."""
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
            )  # one transaction: a kill leaves no half trial
        return number

    def report(self, number: int, step: int, value: float) -> bool:
        """Note the score of an evaluation after `step` policy steps (`Pace.read_scores`); whether the trial is to end.

        That is asked once at each: told again, the trial goes on. Others are judged by what they were worth after as
        many policy steps.
        """
        if step <= self._judged.get(number, -1):
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
            self._judged[number] = step
        return ends

    def _note_rungs(self, number: int, step: int, attributes: Mapping[str, Any]) -> None:
        """Keep which rungs a trial has come to, and when: halving and hyperband compare later trials there."""
        trial = self.trials[number]
        noted = trial.system_attrs.get(RUNGS, {})
        new = {key: (step, value) for key, value in attributes.items() if key.startswith(RUNG) and key not in noted}
        if new:
            with self._write():
                self._database.set_trial_system_attr(trial._trial_id, RUNGS, noted | new)

    def tell(self, number: int, state: str, value: float | None = None, **notes: Any) -> None:
        """Note what a trial came to: "complete" with its value, "pruned" or "fail". Told again, it stays as it is."""
        trial = self.trials[number]
        if trial.state.is_finished():
            return
        if state == "pruned":  # as Optuna itself has it: the last intermediate value
            value = trial.intermediate_values[max(trial.intermediate_values)]
        values = None if value is None else [value]
        states = self._optuna.trial.TrialState
        with self._write():
            for key, note in notes.items():
                self._database.set_trial_user_attr(trial._trial_id, key, note)
            self._database.set_trial_state_values(trial._trial_id, states[state.upper()], values)

    def count_fault(self, number: int) -> int:
        """Note that a fault of the machine has ended a trial; how often by now."""
        trial = self.trials[number]
        count = trial.user_attrs.get("faults", 0) + 1
        with self._write():
            self._database.set_trial_user_attr(trial._trial_id, "faults", count)
        return count

    def best(self) -> FrozenTrial | None:
        """The complete trial of the highest value, the earlier one of two; None without one."""
        complete = [t for t in self.trials if t.state == self._optuna.trial.TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    def importance(self) -> dict[str, float]:
        """Share of the spread in value that each key explains; nothing where there are too few trials to say."""
        complete = [t for t in self.trials if t.state == self._optuna.trial.TrialState.COMPLETE]
        if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
            return {}
        with warnings.catch_warnings(action="ignore"):
            return self._optuna.importance.get_param_importances(self._study)

    def seeds(self, stream: int, count: int) -> list[int]:
        """The first so many seeds of a stream of the sweep: TRAINING of every trial, CONFIRMATION of the winner."""
        return [streams.integer(self.config.seed, "sweep", stream, index) for index in range(count)]

    @contextmanager
    def _write(self) -> Iterator[None]:
        """Around a write: nobody reads meanwhile, nor goes on with what was read before."""
        with self._lock, self._watch("what a trial came to cannot be noted"):
            yield
            self._trials = None

    def _watch(self, doing: str) -> AbstractContextManager[None]:
        return storage_errors(f"sweep {self.config.name}: {doing}", self._go_on)

    def _batch_of(self, number: int) -> int:
        """The number of the first trial of its batch; 0 in async mode, where every trial knows of all others."""
        return number // self.config.batch * self.config.batch if self.config.mode == "batch" else 0

    def _view(
        self, number: int, sampler: BaseSampler | None = None, pruner: BasePruner | None = None, at: int | None = None
    ) -> optuna.Study:
        """A study in memory of the trials before this one, as far as it is to know of them.

        At a number of policy steps those that are known have one intermediate value, what they were worth then.
        """
        with warnings.catch_warnings(action="ignore"):
            view = self._optuna.create_study(study_name=VIEW, direction="maximize", sampler=sampler, pruner=pruner)
            known = self._batch_of(number) if self.config.mode == "batch" else number
            before = self.trials[:number]
            others = [*map(as_known, before[:known]), *map(as_asked, before[known:])]
            if at is not None and self._pace is not None:
                score_at = functools.partial(self._pace.score_at, steps=at)
                others = [with_value(trial, at, score_at(trial.intermediate_values)) for trial in others]
            view.add_trials(others)
        return view


def params_of(space: Sequence[Dimension], trial: FrozenTrial) -> Params:
    """A trial's values for the config, in the order of the space."""
    return {d.key: d.to_config(trial.params[d.key]) for d in space if d.key in trial.params}
