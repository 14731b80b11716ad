"""The training flows: make-env, collect, then train, checkpoint, evaluate until done, then register-model.

`train_ppo` is what a Prefect deployment names. `run_flow` is what the command line and a notebook call: the same flow
on a run directory, new or half-done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from flows import tasks as t  # sets the environment before Prefect is imported
from flows.process.signals import TrainingInterrupted, interrupted, still_terminable, terminable
from flows.runs.listeners import tell, watching
from flows.workers import artifacts
from flows.workers import flow_run as deployed
from flows.workers.local_api import prefect_api
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, last_event, read_events
from rlcore.store.run_config import config_of

from prefect import Flow  # isort: skip
from prefect.exceptions import TerminationSignal  # isort: skip
from flows.report.sentences import describe


def train_flow(algo: str) -> Flow[..., dict[str, Any]]:
    """The flow that trains with one algorithm.

    Args:
        algo: as `algo.name`.

    Returns:
        Flow `train-<algo>` with parameters `overrides` (as typed after `shepherd train`), `run_dir` (a run that is
        there already is continued) and `accelerator`.
    """

    # Defaults that Prefect's form shows as an empty list and an empty field; nothing changes them.
    def train(overrides: list[str] = [], run_dir: str = "", accelerator: str = "") -> Any:  # noqa: B006
        key = "fabric.accelerator="
        if accelerator and not any(override.startswith(key) for override in overrides):
            overrides = [*overrides, f"{key}{accelerator}"]
        flow_run = deployed.flow_run_id()
        if flow_run is not None:
            return _on_a_worker(algo, overrides, run_dir or None, flow_run)
        return _guarded(*_prepare(algo, overrides, run_dir or None))

    train.__doc__ = DESCRIPTION.format(algo=algo)
    return Flow(train, name=f"train-{algo}", version=t.VERSION, persist_result=False)


# Prefect shows the Args in its form for a new run.
DESCRIPTION = """{algo}: from a config to a registered model.

Args:
    overrides: what one would type after `shepherd train`, one entry each: `env.id=Acrobot-v1`, `seed=3`,
        `algo.total_steps=200000`. Without `exp=` the preset is `exp={algo}`.
    run_dir: the folder of a run that is there already and is to be continued, with overrides as for `shepherd resume`;
        usually empty.
    accelerator: `fabric.accelerator` where the overrides do not set it; the pool's own, usually left as it is.
"""
FLOWS = {algo: train_flow(algo) for algo in ALGORITHMS}
train_ppo = FLOWS["ppo"]


def run_flow(run: RunDirectory) -> dict[str, Any]:
    """Run the training flow on a run directory, new or half-done: what is done already is not done again.

    Args:
        run: with config.yaml.

    Returns:
        The run's summary.

    Raises:
        TrainingInterrupted: a signal ended it; the state is durable.
    """
    from flows.runs.trainer import expect_trainer, release

    algo = config_of(run).algo.name
    with _terminable():
        expect_trainer(run)  # it gets ready while Prefect does
        try:
            with prefect_api():
                FLOWS[algo](run_dir=str(run.path.absolute()))
        finally:
            release(run)
    return run.read_summary()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a signal end the flow as an exception, so that the process can say so and choose its exit code.

    Prefect turns SIGTERM into an exception of its own while a flow runs; once the flow is down it sends the signal
    again to the handler it found before, and the system's would end the process on the spot.
    """
    with terminable():
        try:
            yield
        except TerminationSignal:
            raise TrainingInterrupted from None
        except Exception:
            if interrupted():  # it came where Prefect had nothing ready to report it with, and failed over that
                raise TrainingInterrupted from None
            raise


@contextmanager
def watched(run: RunDirectory, progress: Any) -> Iterator[None]:
    """Show a run on a progress line while the flow runs.

    Args:
        run: whose.
        progress: a `flows.cli.progress.Progress`.

    Yields:
        Nothing.
    """

    def watcher(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress":
            rate = facts["env_steps"] / facts["elapsed"] if facts["elapsed"] > 0 else 0.0
            progress.update(facts["env_steps"], facts["return"], rate, facts["elapsed"])
        elif (sentence := describe(kind, facts)) is not None:
            progress.note(sentence)

    with watching(watcher), _errors_told_once():
        yield


@contextmanager
def _errors_told_once() -> Iterator[None]:
    """Keep Prefect's tracebacks off the terminal: the command tells the sentence; Prefect's history has the rest."""
    import logging

    names = ("prefect.flow_runs", "prefect.task_runs")
    handlers = logging.getLogger().handlers + logging.getLogger("prefect").handlers

    def elsewhere(record: logging.LogRecord) -> bool:
        return not record.name.startswith(names)

    for handler in handlers:
        handler.addFilter(elsewhere)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(elsewhere)


def _on_a_worker(algo: str, overrides: list[str], run_dir: str | None, flow_run: str) -> Any:
    """The same, supervised; a mistake in the parameters is the state's message and no traceback."""
    with deployed.supervised():
        try:
            earlier = deployed.place(flow_run)
            if earlier is not None:
                config, run = _prepare(algo, [], earlier)  # its overrides are in the run since the first attempt
            else:
                config, run = _prepare(algo, deployed.named(flow_run, overrides, run_dir), run_dir)
            deployed.remember(flow_run, run)
            with deployed.going_on(flow_run, run):
                return _guarded(config, run)
        except UserError as error:
            return deployed.failed(str(error))


def _prepare(algo: str, overrides: list[str], run_dir: str | None) -> tuple[RunConfig, RunDirectory]:
    """The config and directory of the run: those that are there, else composed and made.

    Raises:
        UserError: the config is wrong, or is of another algorithm than the flow; or an override would make a run that
            is there learn something else.
    """
    if run_dir is None or not RunDirectory(run_dir).config.exists():
        return _create(algo, overrides, run_dir)
    from flows.runs.change import change_run

    run = RunDirectory(Path(run_dir).absolute())
    run.refuse_second_writer()  # before anything is noted in a run that another process trains
    _check_algorithm(algo, config_of(run))
    if overrides:
        change_run(run, overrides)
    return config_of(run), run


def _check_algorithm(algo: str, config: RunConfig) -> None:
    if config.algo.name != algo:
        raise UserError(f"algo.name={config.algo.name}: this is flow train-{algo}; run flow train-{config.algo.name}")


def _create(algo: str, overrides: list[str], run_dir: str | None) -> tuple[RunConfig, RunDirectory]:
    from flows.config.compose import compose
    from flows.runs.create import new_run

    chosen = [] if any(override.startswith("exp=") for override in overrides) else [f"exp={algo}"]
    place = [f"run_dir={run_dir}"] if run_dir is not None else []
    typed = [*chosen, *overrides, *place]
    config, tree = compose(typed)
    _check_algorithm(algo, config)
    run = new_run(config, tree, typed)
    return config_of(run), run


def _guarded(config: RunConfig, run: RunDirectory) -> dict[str, Any]:
    """All stages; whatever ends them, the trainer process ends too and the event log says how."""
    with still_terminable(), run.driving():
        return _all_stages(config, run)


def _all_stages(config: RunConfig, run: RunDirectory) -> dict[str, Any]:
    from flows.runs.trainer import release
    from flows.tracking.background import finish_mirror, mirror_in_background

    label = f"{config.algo.name} {config.env.id}"
    _name_flow_run(config, run)
    try:
        result = _stages(config, run, label)
    except BaseException as error:
        if isinstance(error, Exception) and not interrupted():
            _note_end(run, "failed", str(error))
        else:  # Ctrl-C, Prefect's cancellation; the trainer writes a checkpoint before it ends
            release(run, interrupt=True)
            _note_end(run, "interrupted", type(error).__name__)
        mirror_in_background(run, every=0.0)
        raise
    finally:
        release(run)
    finish_mirror(run)
    return result


def _stages(config: RunConfig, run: RunDirectory, label: str) -> dict[str, Any]:
    from flows.runs.milestones import ended, note_start
    from flows.runs.trainer import expect_trainer, release
    from flows.stages.make_env import write_card
    from flows.tracking.background import mirror_in_background

    expect_trainer(run)
    where = str(run.path)
    note_start(run)
    mirror_in_background(run)  # MLflow shows the run from its beginning
    if not run.card.exists():
        card = t.make_env_task(where, label)
        if not run.card.exists():  # it was measured for an earlier run
            write_card(run, card)
    if last_event(read_events(run.events), "baseline") is None:
        t.collect_task(where, label)
    boundary = _train(run, label)
    ended(run, boundary)
    if boundary.reason in ("target_return", "plateau"):
        tell("stage", {"doing": f"stopped early at {boundary.env_steps:,} env steps: early_stop, {boundary.reason}"})
    if config.algo.run_test and not _judged(config, run):
        doing = (
            f"last evaluation: {config.evaluation.final_episodes} episodes, greedy and sampling, on seeds of their own"
        )
        tell("stage", {"doing": doing})
        t.evaluate_task(where, label, boundary.env_steps, True)
    release(run)
    if not config.model_manager.disabled:
        tell("stage", {"doing": "register-model: champions are compared over at least 100 episodes"})
    model = t.register_model_task(where, label)
    t.summary_task(where, label)
    return {"run_dir": where, "env_steps": boundary.env_steps, "model": model}


def _judged(config: RunConfig, run: RunDirectory) -> bool:
    """Whether the last final evaluation is of the checkpoint that stands for the run now, over the episodes asked for.

    A resumed run may have trained on, and may want other episodes than before.
    """
    from rlcore.judge.final import chosen

    final = last_event(read_events(run.events), "evaluation", final=True)
    if final is None or final.get("checkpoint") != str(chosen(run).relative_to(run.path)):
        return False
    return final["greedy"]["episodes"] == config.evaluation.final_episodes


def _train(run: RunDirectory, label: str) -> Any:
    """Train from boundary to boundary; what is due at one is done before the next."""
    from flows.runs.trainer import trainer_for
    from flows.stages.train import Boundary

    where, progress = str(run.path), artifacts.start_progress(run)
    env_steps = trainer_for(run).env_steps
    due_tasks = (("checkpoint", t.checkpoint_task), ("evaluate", t.evaluate_task))
    while True:
        said = t.train_task(where, label, env_steps, progress)
        env_steps = said["env_steps"]
        lost = any(name in said["due"] and act(where, label, env_steps) is None for name, act in due_tasks)
        if said["done"] and not lost:
            return Boundary(env_steps, tuple(said["due"]), True, said["reason"])


def _name_flow_run(config: RunConfig, run: RunDirectory) -> None:
    """Call and tag the flow run by environment and seed, which its parameters need not name.

    The flow run only: for every tag of a task run Prefect asks its API for a place, which takes longer than the task.
    """
    import prefect.runtime.flow_run
    from prefect.client.orchestration import get_client

    identity = prefect.runtime.flow_run.get_id()
    if identity is None:
        return
    name = f"{config.env.id} seed {config.seed} {run.read_identity()['run_id'][:6]}"
    labels = [config.algo.name, config.env.id, f"seed={config.seed}"]
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(identity), name=name, tags=labels)


def _note_end(run: RunDirectory, status: str, reason: str) -> None:
    """Write how training ended, unless it had ended well before."""
    lifecycle = [e for e in read_events(run.events) if e["kind"] in ("start", "resume", "end")]
    if lifecycle and lifecycle[-1]["kind"] == "end":
        return
    steps = [e["env_steps"] for e in read_events(run.events) if e["kind"] in ("metrics", "checkpoint")]
    with suppress(RunError):  # a full disk, say: what ended training is to be told, not that it could not be noted
        EventLog(run.events).append("end", status=status, env_steps=max(steps, default=0), reason=reason)
