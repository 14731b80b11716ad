"""The stages as Prefect tasks: names, versions, retries, artifacts. What a run has already is not done again.

A task is handed the run directory as text and gives small JSON, never a tensor. The trainer process stays alive between
tasks, in this process; a retried task finds it dead and starts it again from the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import rlcore
from flows.report.sentences import result_line
from flows.runs.lineage import commit
from flows.runs.listeners import tell
from flows.runs.trainer import SameAgain, standing
from flows.settings import WARM, configure_environment
from flows.stages.checkpoint import checkpoint as checkpoint_stage
from flows.stages.evaluate import evaluate as evaluate_stage
from flows.stages.evaluate import judged
from flows.stages.make_env import make_env as make_env_stage
from flows.stages.make_env import write_card
from flows.stages.summary import summary as summary_stage
from flows.stages.train import boundaries as train_boundaries
from flows.stages.train import train as train_stage
from flows.workers import artifacts
from rlcore.envs.card import card_key
from rlcore.errors import DiskFault, EnvironmentFault, EnvironmentLost, OutOfMemory, UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import last_event, read_events
from rlcore.store.run_config import config_of
from rlcore.store.series import evaluations
from rlcore.system.imports import import_soon
from rlcore.train.boundary import Boundary

configure_environment()  # Prefect reads its settings when it is imported

from prefect import Task, task  # noqa: E402
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy  # noqa: E402
from prefect.client.schemas.objects import State, TaskRun  # noqa: E402
from prefect.context import FlowRunContext, TaskRunContext  # noqa: E402

RETRIES = (1, 5)  # seconds before a failed stage is tried again
VERSION = f"{rlcore.__version__}+{commit()[:10]}"


def worth_retrying(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a failure may pass by itself: a killed process does, a mistake in the config or a NaN never.

    Nor does an environment that would do the same again, memory that is short, or a full disk, for which the trainer
    has waited by then.
    """
    return may_pass(state.result(raise_on_failure=False))


def may_pass(failure: Any) -> bool:
    """Whether a failure may pass by itself; tells of one that is tried again."""
    lasting = isinstance(failure, (UserError, EnvironmentFault, DiskFault, OutOfMemory, SameAgain))
    worth = isinstance(failure, EnvironmentLost) or not lasting
    if worth:
        tell("stage", {"doing": f"{failure}; trying again", "failure": True})
    return worth


def called(stage: str) -> Callable[[dict[str, Any]], str]:
    """How the task runs of a stage are called: stage, algorithm, environment, and where training stands."""

    def name(parameters: dict[str, Any]) -> str:
        run = RunDirectory(parameters["run"])
        config = run.read_config()
        steps = {"train": " from {}", "checkpoint": " at {}", "evaluate": " at {}"}.get(stage, "")
        return f"{stage} {config['algo']['name']} {config['env']['id']}{steps.format(standing(run) if steps else '')}"

    return name


def stage_task(stage: str, **options: Any) -> Any:
    """A decorator that makes a task of a function; `options` are Prefect's, where a stage differs from the others.

    Called without a flow run around it, as by a sweep's worker, it is the plain function, tried again as the task is.
    """
    # No tags: for each of them Prefect asks its API for a place before a task may run, and a server that is away would
    # stop training. The names say which stage it is.
    common: dict[str, Any] = {
        "name": stage,
        "task_run_name": called(stage),
        "version": VERSION,
        "retries": len(RETRIES),
        "retry_delay_seconds": [*RETRIES],
        "retry_condition_fn": worth_retrying,
        "cache_policy": NO_CACHE,  # what a stage leaves behind lies in the run directory, not in its result
        "persist_result": False,
    }

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        as_task, plainly = task(**common | options)(function), tried_again(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (as_task if FlowRunContext.get() else plainly)(*args, **kwargs)

        return call

    return made


def tried_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called again after a failure that may pass."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for pause in RETRIES:
            try:
                return function(*args, **kwargs)
            except Exception as failure:
                if not may_pass(failure):
                    raise
            time.sleep(pause)
        return function(*args, **kwargs)

    return call


def measured(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """What make-env is cached by: a hash of everything that the card depends on; None = measure each time."""
    config = config_of(RunDirectory(parameters["run"]))
    return card_key(config.env, config.seed)


_cards: dict[str | None, dict[str, Any]] = {}
cached = {
    "cache_policy": CacheKeyFnPolicy(cache_key_fn=measured),
    "persist_result": True,
    "result_serializer": "json",
}


@stage_task("make-env", **cached)
def _make_env(run: str) -> dict[str, Any]:
    make_env_stage(RunDirectory(run))
    return RunDirectory(run).read_card()


def _card(run: str) -> dict[str, Any]:
    """What make-env gives, measured once in a process where Prefect caches nothing."""
    config = config_of(RunDirectory(run))
    key = card_key(config.env, config.seed)
    card = _cards[key] if key in _cards else _make_env(run)
    if key is not None:
        _cards[key] = card
    return card


@stage_task("collect")
def _collect(run: str) -> dict[str, Any]:
    from flows.stages.collect import collect as collect_stage  # torch, which a sweep's driver, say, never needs

    return collect_stage(RunDirectory(run))


@stage_task("train")
def _train(run: str) -> dict[str, Any]:
    return dataclasses.asdict(train_stage(RunDirectory(run)))


@stage_task("checkpoint")
def checkpoint(run: str, policy_steps: int) -> dict[str, Any] | None:
    """Make the trainer's state durable; None where the trainer had died and stands elsewhere than at `policy_steps`."""
    return checkpoint_stage(RunDirectory(run), policy_steps)


@stage_task("evaluate")
def _evaluate(run: str, policy_steps: int | None, final: bool) -> dict[str, Any] | None:
    return evaluate_stage(RunDirectory(run), policy_steps, final=final)


@stage_task("register-model")
def register_model(run: str) -> dict[str, Any]:
    """Register the policy and decide on the champion; name, version, aliases, decision."""
    from flows.stages.register_model import register_model as register_model_stage  # torch

    return register_model_stage(RunDirectory(run))


@stage_task("summary")
def summary(run: str) -> dict[str, Any]:
    """Write the summary and the learning curve, and show both in Prefect."""
    directory = RunDirectory(run)
    results = summary_stage(directory)
    if FlowRunContext.get():
        artifacts.show_results(directory, results, directory.curve)
    told = {key: results[key] for key in ("status", "policy_steps", "model")}
    return {"run_dir": run, "result": result_line(results, evaluations(read_events(directory.events))), **told}


@stage_task("verify")
def _verify(run: str, policy_steps: int) -> dict[str, Any] | None:
    from flows.stages.verify import verify as verify_stage  # torch

    return verify_stage(RunDirectory(run), policy_steps)


@stage_task("verdict")
def verdict(run: str) -> dict[str, Any]:
    """Say what a reproduction came to whose checkpoints are all those of its original."""
    from flows.stages.verify import verdict as verdict_stage  # torch

    return verdict_stage(RunDirectory(run))


def verify(run: str, policy_steps: int) -> None:
    """Hold a reproduction's checkpoint against its original's; `Departed`, which ends the flow, where they differ."""
    result = _verify(run, policy_steps)
    if result is not None:
        tell("stage", {"doing": result["sentence"]})
        if not result["same"]:
            from flows.stages.verify import Departed  # torch

            raise Departed(result["sentence"])


def make_env(run: str) -> None:
    """Hold the config against a real environment; one that nothing has changed is not measured twice."""
    directory = RunDirectory(run)
    if not directory.card.exists():
        card = _make_env(run) if FlowRunContext.get() else _card(run)
        if not directory.card.exists():  # it was measured for an earlier run
            write_card(directory, card)


def collect(run: str) -> None:
    """Play the random baseline, unless the run's log has it."""
    if last_event(read_events(RunDirectory(run).events), "baseline") is None:
        _collect(run)


def boundaries(run: str, *, registers: bool = True) -> Iterator[Boundary]:
    """Train from boundary to boundary, a task each, until training is done or pruned.

    `registers` says that register-model follows: what it imports comes while the trainer works.
    """
    config = RunDirectory(run).read_config()
    # Not in one of many processes, whose memory it would take for the whole of their trainings.
    if registers and not (config["model_manager"]["disabled"] or config["dry_run"] or os.environ.get(WARM)):
        import_soon("mlflow.pyfunc")
    return train_boundaries(RunDirectory(run), lambda: Boundary(**_train(run)))


def evaluate(run: str, policy_steps: int | None = None, *, final: bool = False) -> None:
    """Judge the present policy; at the end, unless that is done or not wanted, the run's chosen checkpoint."""
    if not final or not judged(RunDirectory(run)):
        _evaluate(run, policy_steps, final)
