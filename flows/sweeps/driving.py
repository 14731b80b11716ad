"""Sweep that is run by this process, the loop that starts its trials, and the treatment of machine faults.

A trial that a machine fault has ended (full disk, missing memory, killed process) is repeated, left unfinished, or
counted as failed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import FAULTS, End, Executor, Job, iqm, read_reports, trainings, trial_overrides
from flows.sweeps.plan import SweepPlan, merge
from flows.sweeps.space import to_overrides
from flows.sweeps.status import short_names, short_value
from flows.sweeps.study import TRAINING, Study
from rlcore.errors import DiskFault, RunError

ATTEMPTS = 3  # attempts of one trial, over all resumes of the sweep; then the trial is assumed to cause the fault


class Sweep:
    """Sweep that is run by this process, which is called the driver of the sweep.

    Args:
        folder: folders of the sweep.
        plan: plan of the sweep.
    """

    def __init__(self, folder: SweepFolder, plan: SweepPlan) -> None:
        assert plan.pace is not None, "check_plan computes it"
        self.folder, self.plan, self.pace, self.config = folder, plan, plan.pace, plan.config
        self.runs = folder.runs
        self.study = Study(self.plan, folder.storage(plan), folder.study_name(plan))
        self.executor: Executor
        self.page = threading.Lock()  # locked while a thread writes the page
        self.is_reported = False  # True after the page was written for the last time
        self._one = threading.Lock()  # guards the study, because jobs report from threads

    def job(self, number: int) -> Job:
        """Return the job that trains a trial: its label and its runs, one per seed."""
        params = self.study.params(number)
        base = trial_overrides(merge(self.plan.base, to_overrides(params)), self.config)
        runs = trainings(
            self.folder.trial(number), base, self.study.seeds(TRAINING, self.config.seeds), self.config.name
        )
        names = short_names([dimension.key for dimension in self.plan.space])
        values = " ".join(f"{names[key]}={short_value(value)}" for key, value in params.items())
        return Job(f"trial {number}: {values}", runs, number)

    def review(self, job: Job) -> bool:
        """Report the new evaluations of a trial to the pruner; return True if the pruner decides to end the trial."""
        if job.number is None:
            return False
        with self._one:
            return any(
                self.study.report(job.number, step, score)
                for step, score in read_reports(job.trainings, self.pace, self.config.quantity)
            )

    def record(self, job: Job, end: End) -> None:
        """Store the result of a trial in the study.

        If a machine fault (full disk, killed process, out of memory) ended the trial, nothing is stored, and the trial
        stays unfinished.
        """
        assert job.number is not None
        if end.state == "unfinished":
            job.emit("job", doing=f"unfinished: {end.sentence}")
            return
        state, value, sentence = {"over": "complete", "pruned": "pruned"}.get(end.state, "fail"), None, end.sentence
        if state == "complete":
            try:
                value = iqm([training.value(self.config, self.pace) for training in job.trainings])
            except RunError as error:
                state, sentence = "fail", str(error)
        notes = {"policy_steps": sum(training.policy_steps for training in job.trainings)}
        with self._one:
            self.study.tell(job.number, state, value, **notes | ({"sentence": sentence} if sentence else {}))
        job.emit("trial", state=state, value=self.study.trials[job.number].value, sentence=sentence, **notes)


def trials(sweep: Sweep) -> Iterator[Job]:
    """Yield the trials of a sweep, each when a worker is free to train it, and record their results.

    The caller must start each trial. The iterator ends when all trials have ended. Unfinished trials of an earlier
    process come first. In batch mode, a batch starts after all trials of the previous batch have ended.

    A trial is retried if its processes were killed or ran out of memory. The retry waits until no other trial is
    running, because several trials together may have used too much memory. If machine faults leave trials unfinished,
    a `MachineFault` is raised at the end.
    """
    study, begun = sweep.study, sweep.study.list_unfinished()
    faults = Faults(study, sweep.folder.resume_command)
    while True:
        while sweep.executor.free and not faults.full:
            number = begun.pop(0) if begun else study.ask()
            if number is None:
                break
            yield sweep.job(number)
        if not sweep.executor.busy:
            number = faults.again()
            if number is None:
                break
            yield sweep.job(number)
        job, end = sweep.executor.wait()
        assert job.number is not None
        sweep.record(job, faults.classify(job.number, end))
    faults.raise_collected()


class Faults:
    """Collection of machine faults (full disk, out of memory, killed process) that ended trials of a sweep.

    Only faults that occur while this process runs the sweep are collected.

    Args:
        study: Optuna study of the sweep.
        resume_command: command that resumes the sweep, for error messages.
    """

    def __init__(self, study: Study, resume_command: str) -> None:
        self._study, self._resume_command = study, resume_command
        self._again: list[int] = []
        self._tried: set[int] = set()
        self._left: dict[int, End] = {}

    @property
    def full(self) -> bool:
        """True if a full disk has ended a trial. No further trial is started then, because it would fail as well."""
        return any(end.fault == DiskFault.__name__ for end in self._left.values())

    def again(self) -> int | None:
        """Return the number of the next trial to retry after a machine fault; None if there is none.

        Call this only while no trial is running. The retried trial can then use all memory of the machine, which helps
        if several trials together used too much memory.
        """
        if self.full or not self._again:
            return None
        number = self._again.pop(0)
        self._tried.add(number)
        return number

    def classify(self, number: int, end: End) -> End:
        """Return the result to record for a trial, and remember the trial if a machine fault has ended it.

        The returned result is `end`, with one exception: if a machine fault has ended `ATTEMPTS` attempts of the trial,
        the trial counts as failed.

        Args:
            number: number of the trial.
            end: result of the trial's job.

        Returns:
            The result to record.
        """
        if end.state != "unfinished":
            return end
        if end.fault == DiskFault.__name__:
            self._left[number] = end
            return end
        attempts = self._study.count_fault(number)
        if attempts >= ATTEMPTS:
            return End(
                "failed", f"{end.sentence}; gave up after {attempts} attempts; retry: {self._resume_command} --failed"
            )
        if number in self._tried:
            self._left[number] = end
        else:
            self._again.append(number)
        return end

    def raise_collected(self) -> None:
        """Raise the machine fault of the unfinished trial with the lowest number; do nothing if there is none."""
        for number, end in sorted(self._left.items()):
            raise FAULTS[end.fault](f"trial {number} is unfinished: {end.sentence}")
