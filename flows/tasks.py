"""The stages as Prefect tasks: names, versions, retries, cache keys. What a run has already is not done again.

A task is handed the run directory as text and gives small JSON, never a tensor. The trainer process stays alive between
tasks, in this process; a retried task finds it dead and starts it again from the last checkpoint.
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
from flows.runs.trainer import DeterministicFailure, current_step
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
    """A stage as a Prefect task; its function is imported when it is first called.

    Called without a flow run around it, as by a sweep's worker, it is the function itself, tried again as the task is.

    Args:
        name: of the stage.
        function: `module.function` below flows.stages, of the run directory and what else the stage is called with.
        done: of the same arguments: the run has it already, and nothing is to be done.
        finish: of the run directory and what the function gave, also where that was cached; gives the result.
        torch: the function needs torch, and is called in the run's trainer.
        **options: Prefect's, where a stage differs from the others.
    """

    def __init__(
        self,
        name: str,
        function: str,
        *,
        done: Callable[..., bool] = lambda run, *arguments, **more: False,
        finish: Callable[[RunDirectory, Any], Any] = lambda run, made: made,
        torch: bool = False,
        **options: Any,
    ) -> None:
        self.name, self._place, self._torch = name, f"flows.stages.{function}", torch
        self._done, self._finish, self._options = done, finish, options

    def __call__(self, run: RunDirectory, *arguments: Any, **more: Any) -> Any:
        """Do the stage and give what it gives; None where the run has it already."""
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
        """A task run is called by stage, algorithm, environment, and where training stands."""
        run = RunDirectory(parameters["run"])
        config = run.read_config()
        steps = {"train": " from {}", "checkpoint": " at {}", "evaluate": " at {}"}.get(self.name, "")
        place = steps.format(current_step(run) if steps else "")
        return f"{self.name} {config['algo']['name']} {config['env']['id']}{place}"


def options() -> dict[str, Any]:
    """Prefect's options of every task.

    No tags: for each of them Prefect asks its API for a place before a task may run, and a server that is away would
    stop training. The names say which stage it is.
    """
    return {
        "version": VERSION,
        "retries": len(RETRIES),
        "retry_delay_seconds": [*RETRIES],
        "retry_condition_fn": worth_retrying,
        "cache_policy": NO_CACHE,  # what a stage leaves behind lies in the run directory, not in its result
        "persist_result": False,
    }


def try_again(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, again after a failure that may pass; gives what it gives."""
    for pause in RETRIES:
        try:
            return function(*arguments)
        except Exception as failure:
            if not may_recover(failure):
                raise
        time.sleep(pause)
    return function(*arguments)


def worth_retrying(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Tell whether a failure may pass by itself: a killed process does, a mistake in the config or a NaN never.

    Nor does an environment that would do the same again, memory that is short, or a full disk, for which the trainer
    has waited by then.
    """
    return may_recover(state.result(raise_on_failure=False))


def may_recover(failure: Any) -> bool:
    """Decide whether a failure may pass by itself, and tell of one that is tried again."""
    known = machine_fault(failure) or failure if isinstance(failure, Exception) else failure
    lasting = isinstance(known, (UserError, EnvironmentFault, DiskFault, OutOfMemory, DeterministicFailure))
    worth = isinstance(failure, EnvironmentLost) or not lasting
    if worth:
        emit("stage", {"doing": f"{failure}; trying again", "failure": True})
    return worth


def key_of_card(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """By which make-env is cached: a hash of everything that the card depends on; None = measure each time."""
    return card_key(config_of(RunDirectory(parameters["run"])).env)


def log_result(run: RunDirectory, results: dict[str, Any]) -> dict[str, Any]:
    """Result of a flow run, of a summary: where the run lies, how it ended, and its result in a sentence."""
    told = {key: results[key] for key in ("status", "policy_steps", "model")}
    return {
        "run_dir": str(run.path),
        "result": result_line(results, history(run.events).evaluations),
        **told,
    }


def stop_if_different(run: RunDirectory, made: dict[str, Any] | None) -> None:
    """Tell what came of a comparison; `ReproductionMismatch`, which ends the flow, where the two differ."""
    if made is not None:
        emit("stage", {"doing": made["sentence"]})
        if not made["same"]:
            from flows.runs.original import ReproductionMismatch  # torch

            raise ReproductionMismatch(made["sentence"])


# One that nothing has changed is not measured twice, also not for another run or seed.
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
