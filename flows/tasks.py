"""Stages of a training run as Prefect tasks: names, versions, retries, cache keys. Completed stages are skipped.

A task takes the path of the run directory and returns small JSON values, never a tensor. The process of the flow starts
a trainer process, which several tasks use. If the trainer dies, the retried task starts a new one, which resumes from
the last checkpoint.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import rlcore
from flows.report.sentences import result_line
from flows.runs.env_card import write_card
from flows.runs.lineage import commit
from flows.runs.listeners import emit
from flows.runs.milestones import has_dataset, is_evaluated
from flows.runs.pruning import over
from flows.runs.trainer import current_step
from flows.runs.trainer_process import DeterministicFailure
from flows.runs.with_torch import with_torch
from flows.settings import configure_environment
from rlcore.envs.card import card_key
from rlcore.errors import DiskFault, EnvironmentFault, EnvironmentLost, OutOfMemory, UserError, machine_fault
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history

configure_environment()  # Prefect reads its settings when it is imported

from prefect import Task, task  # noqa: E402
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy  # noqa: E402
from prefect.client.schemas.objects import State, TaskRun  # noqa: E402
from prefect.context import FlowRunContext, TaskRunContext  # noqa: E402

RETRIES = (1, 5)  # seconds before a failed stage is tried again
VERSION = f"{rlcore.__version__}+{commit()[:10]}"


class Stage:
    """Stage of a training run, called as a Prefect task.

    Outside of a Prefect flow run, for example in a worker of a sweep, the stage is executed without Prefect. It is then
    retried under the same conditions.

    Args:
        name: name of the stage.
        function: `module.function` in flows.stages, imported at the first call. It is called with the run directory
            and the arguments of the stage.
        done: called like `function`; returns True if the run has completed the stage, which is then skipped.
        finish: called with the run directory and the result of `function`, which Prefect may have cached; returns the
            result of the stage.
        torch: True if the function needs torch. It is then called in the trainer process of the run.
        **options: options of Prefect's `task`; they take precedence over the common options of all stages.
    """

    def __init__(
        self,
        name: str,
        function: str,
        *,
        done: Callable[..., bool] = lambda run, *arguments, **more: False,
        finish: Callable[[RunDirectory, Any], Any] = lambda run, result: result,
        torch: bool = False,
        **options: Any,
    ) -> None:
        self.name, self._place, self._torch = name, f"flows.stages.{function}", torch
        self._done, self._finish, self._options = done, finish, options

    def __call__(self, run: RunDirectory, *arguments: Any, **more: Any) -> Any:
        """Run the stage for a run and return its result; return None if the run has already completed the stage."""
        if self._done(run, *arguments, **more):
            return None
        do = self._task if FlowRunContext.get() else functools.partial(try_again, self._function)
        return self._finish(run, do(str(run.path), list(arguments), more))

    def _function(self, run: str, arguments: list[Any], more: dict[str, Any]) -> Any:
        if self._torch:
            return with_torch(RunDirectory(run), self._place, *arguments, **more)
        module, _, name = self._place.rpartition(".")
        return getattr(import_module(module), name)(RunDirectory(run), *arguments, **more)

    @functools.cached_property
    def _task(self) -> Task[..., Any]:
        def stage(run: str, arguments: list[Any], more: dict[str, Any]) -> Any:
            return self._function(run, arguments, more)

        named = {"name": self.name, "task_run_name": self._call_run}
        return task(**options() | named | self._options)(stage)

    def _call_run(self, parameters: dict[str, Any]) -> str:
        """Return the name that Prefect shows for a task run: stage, algorithm, environment and current policy step."""
        run = RunDirectory(parameters["run"])
        config = run.read_config()
        steps = {"train": " from {}", "checkpoint": " at {}", "evaluate": " at {}"}.get(self.name, "")
        place = steps.format(current_step(run) if steps else "")
        return f"{self.name} {config['algo']['name']} {config['env']['id']}{place}"


def options() -> dict[str, Any]:
    """Return the options of Prefect's `task` that all stages have in common.

    Tasks must not have Prefect tags: for each tag, Prefect asks its server for permission before a task starts, so
    training would stop while the server is unavailable.
    """
    return {
        "version": VERSION,
        "retries": len(RETRIES),
        "retry_delay_seconds": [*RETRIES],
        "retry_condition_fn": worth_retrying,
        "cache_policy": NO_CACHE,  # a stage's output is in the run directory, not in its result
        "persist_result": False,
    }


def try_again(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function and return its result; after a failure that may be temporary, retry at most twice."""
    for pause in RETRIES:
        try:
            return function(*arguments)
        except Exception as failure:
            if not may_recover(failure):
                raise
        time.sleep(pause)
    return function(*arguments)


def worth_retrying(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return True if a task run should be retried, because its failure may be temporary, such as a killed process.

    The following failures are not retried: a mistake in the config, a NaN, a deterministic failure of an environment, a
    lack of memory, and a full disk (the trainer has already waited for free space).
    """
    return may_recover(state.result(raise_on_failure=False))


def may_recover(failure: Any) -> bool:
    """Return True if a failure may be temporary; in this case, also report that the stage will be retried."""
    known = machine_fault(failure) or failure if isinstance(failure, Exception) else failure
    lasting = isinstance(known, (UserError, EnvironmentFault, DiskFault, OutOfMemory, DeterministicFailure))
    worth = isinstance(failure, EnvironmentLost) or not lasting
    if worth:
        emit("stage", {"doing": f"{failure}; retrying", "failure": True})
    return worth


def key_of_card(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """Return the key under which Prefect caches the result of the stage make-env.

    The stage measures properties of the environment (the environment card). The key is a hash of everything on which
    the measurement depends. If it is None, the result is not cached and the card is measured for each run.
    """
    return card_key(config_of(RunDirectory(parameters["run"])).env)


def log_result(run: RunDirectory, results: dict[str, Any]) -> dict[str, Any]:
    """Return what the training flow returns: run directory, status, policy steps, model, and a summary in one line.

    `results` is the content of the run's summary file.
    """
    facts = {key: results[key] for key in ("status", "policy_steps", "model")}
    return {
        "run_dir": str(run.path),
        "result": result_line(results, history(run.events).evaluations),
        **facts,
    }


def stop_if_different(run: RunDirectory, comparison: dict[str, Any] | None) -> None:
    """End the flow of a reproduction if a checkpoint differs from the checkpoint of the original run.

    The comparison is reported in both cases. If the checkpoints differ, `ReproductionMismatch` is raised.

    Args:
        run: the reproduction.
        comparison: result of the comparison, with `same` and `sentence`; None if nothing was compared.
    """
    if comparison is not None:
        emit("stage", {"doing": comparison["sentence"]})
        if not comparison["same"]:
            from flows.runs.original import ReproductionMismatch  # torch

            raise ReproductionMismatch(comparison["sentence"])


# An unchanged environment is measured once; other runs and seeds use the cached card.
make_env = Stage(
    "make-env",
    "make_env.measure_once",
    done=lambda run: run.card.exists(),
    finish=write_card,
    cache_policy=CacheKeyFnPolicy(cache_key_fn=key_of_card),
    persist_result=True,
    result_serializer="json",
)
collect = Stage("collect", "collect.collect", done=has_dataset, torch=True)
advance = Stage("train", "train.to_boundary", done=over)
checkpoint = Stage("checkpoint", "checkpoint.checkpoint")
evaluate = Stage(
    "evaluate", "evaluate.evaluate", done=lambda run, policy_steps=None, *, final=False: final and is_evaluated(run)
)
register_model = Stage("register-model", "register_model.register_model")
summary = Stage("summary", "summary.summary", finish=log_result)
verify = Stage("verify", "verify.verify", finish=stop_if_different)
verdict = Stage("verdict", "verify.verdict")
