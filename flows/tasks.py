"""The stages as Prefect tasks: names that carry algorithm and environment, versions, retries, artifacts.

Parameters and results are small JSON: the run directory as text, never a tensor. The trainer process stays alive
between tasks, in this process; a retried task finds it dead and starts it again from the last checkpoint.
"""

from __future__ import annotations

import time
from typing import Any

import rlcore
from flows.runs.lineage import commit
from flows.settings import configure_environment
from rlcore.errors import EnvironmentFault, EnvironmentLost, UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.run_config import config_of

configure_environment()  # Prefect reads its settings when it is imported

from prefect import Task, task  # noqa: E402
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy  # noqa: E402
from prefect.client.schemas.objects import State, TaskRun  # noqa: E402
from prefect.context import TaskRunContext  # noqa: E402

from flows.runs.listeners import tell  # noqa: E402
from flows.workers import artifacts  # noqa: E402

VERSION = f"{rlcore.__version__}+{commit()[:10]}"
PROGRESS_EVERY = 5.0  # seconds; one update of the artifact takes some 30 ms


def worth_retrying(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a failure may pass by itself: a killed process does, a mistake in the config or a NaN never.

    Args:
        task: Prefect's.
        task_run: Prefect's.
        state: the failed state.

    Returns:
        False for a user's mistake, and for an environment that would do the same again.
    """
    failure = state.result(raise_on_failure=False)
    worth = isinstance(failure, EnvironmentLost) or not isinstance(failure, (UserError, EnvironmentFault))
    if worth:
        tell("stage", {"doing": f"{failure}; trying again"})
    return worth


# No tags: for each of them Prefect asks its API for a place before a task may run, and a server that is away would
# stop training. The names say which stage it is.
OPTIONS: dict[str, Any] = {
    "version": VERSION,
    "retries": 2,
    "retry_delay_seconds": [1, 5],
    "retry_condition_fn": worth_retrying,
    "cache_policy": NO_CACHE,  # what a stage leaves behind lies in the run directory, not in its result
    "persist_result": False,
}


def card_key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """What make-env is cached by: everything that the card depends on.

    Args:
        context: Prefect's.
        parameters: of the task.

    Returns:
        A hash, or None where it is to be measured each time.
    """
    from rlcore.envs import card

    config = config_of(RunDirectory(parameters["run_dir"]))
    return card.card_key(config.env, config.seed)


@task(
    name="make-env",
    task_run_name="make-env {label}",
    **OPTIONS
    | {"cache_policy": CacheKeyFnPolicy(cache_key_fn=card_key), "persist_result": True, "result_serializer": "json"},
)
def make_env_task(run_dir: str, label: str) -> dict[str, Any]:
    """Hold the config against a real environment; an environment that nothing has changed is not measured twice.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.

    Returns:
        The environment card.
    """
    from flows.stages.make_env import make_env

    run = RunDirectory(run_dir)
    make_env(config_of(run), run)
    return run.read_card()


@task(name="collect", task_run_name="collect {label}", **OPTIONS)
def collect_task(run_dir: str, label: str) -> str:
    """Play the random baseline; returns the dataset's path.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.

    Returns:
        Path of the dataset's manifest.
    """
    from flows.stages.collect import collect
    from rlcore.store.events import last_event, read_events

    run = RunDirectory(run_dir)
    path = str(collect(config_of(run), run))
    tell("baseline", last_event(read_events(run.events), "baseline") or {})
    return path


@task(name="train", task_run_name="train {label} from {env_steps}", **OPTIONS)
def train_task(run_dir: str, label: str, env_steps: int, progress: str | None) -> dict[str, Any]:
    """Train to the next boundary.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.
        env_steps: taken so far, for the name.
        progress: id of the progress artifact, if there is one.

    Returns:
        env_steps, due, done, reason.
    """
    from flows.runs.trainer import trainer_for

    trainer = trainer_for(RunDirectory(run_dir))
    shown = [time.monotonic()]

    def on_progress(said: dict[str, Any]) -> None:
        tell("progress", said)
        if time.monotonic() - shown[0] >= PROGRESS_EVERY:
            artifacts.show_progress(progress, said["env_steps"], trainer.total_steps)
            shown[0] = time.monotonic()

    boundary = trainer.advance(on_progress)
    artifacts.show_progress(progress, boundary.env_steps, trainer.total_steps)
    return {
        "env_steps": boundary.env_steps,
        "due": list(boundary.due),
        "done": boundary.done,
        "reason": boundary.reason,
    }


@task(name="checkpoint", task_run_name="checkpoint {label} at {env_steps}", **OPTIONS)
def checkpoint_task(run_dir: str, label: str, env_steps: int) -> dict[str, Any] | None:
    """Make the trainer's state durable.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.
        env_steps: where the trainer stands.

    Returns:
        path, env_steps, digest; None when the trainer had died and stands elsewhere now: train again.
    """
    from flows.runs.trainer import trainer_for
    from flows.tracking.background import mirror_in_background

    run = RunDirectory(run_dir)
    trainer = trainer_for(run)
    if trainer.env_steps != env_steps:
        return None
    saved = trainer.checkpoint()
    tell("checkpoint", saved)
    mirror_in_background(run)
    return saved


@task(name="evaluate", task_run_name="evaluate {label} at {env_steps}", **OPTIONS)
def evaluate_task(run_dir: str, label: str, env_steps: int, final: bool = False) -> dict[str, Any] | None:
    """Judge the present policy; at the end the run's chosen checkpoint, greedily and sampling.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.
        env_steps: where the trainer stands.
        final: the last evaluation.

    Returns:
        env_steps, greedy (and stochastic) without the single returns; None as in `checkpoint_task`.
    """
    from flows.runs.trainer import trainer_for
    from flows.tracking.background import mirror_in_background

    run = RunDirectory(run_dir)
    trainer = trainer_for(run)
    if not final and trainer.env_steps != env_steps:
        return None
    event = trainer.evaluate(final)
    tell("evaluation", event)
    mirror_in_background(run)
    modes = {mode: event[mode] for mode in ("greedy", "stochastic") if event.get(mode)}
    figures = {mode: {k: v for k, v in result.items() if k != "returns"} for mode, result in modes.items()}
    return {"env_steps": event["env_steps"], "final": final, **figures}


@task(name="register-model", task_run_name="register-model {label}", **OPTIONS)
def register_model_task(run_dir: str, label: str) -> dict[str, Any]:
    """Register the policy and decide on the champion.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.

    Returns:
        name, version, aliases, decision.
    """
    from flows.stages.register_model import register_model

    run = RunDirectory(run_dir)
    result = register_model(config_of(run), run)
    tell("registered", result)
    return result


@task(name="summary", task_run_name="summary {label}", **OPTIONS)
def summary_task(run_dir: str, label: str) -> str:
    """Write the summary and the learning curve, and show both in Prefect.

    Args:
        run_dir: the run.
        label: algorithm and environment, for the name.

    Returns:
        Path of summary.json.
    """
    from flows.report.curve import learning_curve
    from flows.stages.summary import summarise

    run = RunDirectory(run_dir)
    summary = summarise(run)
    artifacts.show_results(run, summary, learning_curve(run))
    return str(run.summary)
