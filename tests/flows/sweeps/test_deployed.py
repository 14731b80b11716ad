"""Trials as flow runs of a work pool: submission, adoption, pruning and retries, without a Prefect server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import optuna
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Running, Scheduled, State

from flows.sweeps import deployed
from flows.sweeps import study as study_module
from flows.sweeps.deployed import WorkPoolExecutor
from flows.sweeps.driving import Sweep, trials
from flows.sweeps.jobs import DEATHS
from rlcore.errors import ProcessKilled
from rlcore.store.directory import write_json
from tests.flows.sweeps.fake import EVALUATIONS, drive, evaluate, make_sweep, trial_results

FEW = ["sweep.trials=6", "sweep.batch=2", "sweep.startup=2", "sweep.warmup=0", "sweep.confirm_seeds=0"]


class Pool:
    """Prefect's API and workers, in memory. Each read of a running flow run trains it until its next evaluation.

    `crashes` maps the number of a flow run to its crashes at the second evaluation; `broken` ones fail at once.
    """

    def __init__(self, crashes: dict[int, int] | None = None, broken: tuple[int, ...] = ()) -> None:
        self.runs: dict[UUID, FlowRun] = {}
        self.keys: dict[str, UUID] = {}
        self.names: list[str] = []
        self.overrides: list[list[str]] = []
        self.looks = 0  # reads of flow runs that are cancelling: their processes end at the fourth
        self.crashes, self.broken = crashes or {}, broken
        self.sweep: Sweep

    def run_deployment(self, name: str, *, idempotency_key: str, flow_run_name: str, **options: Any) -> FlowRun:
        assert name == "train-ppo/default" and options["as_subflow"] and options["timeout"] == 0
        if idempotency_key not in self.keys:
            flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), name=flow_run_name, state=Running())
            self.runs[flow_run.id], self.keys[idempotency_key] = flow_run, flow_run.id
            self.names.append(flow_run_name)
            self.overrides.append(options["parameters"]["overrides"])
        return self.runs[self.keys[idempotency_key]]

    def read_flow_run(self, flow_run: UUID) -> FlowRun:
        run = self.runs[flow_run]
        if run.state is not None and run.state.is_cancelling():
            self.looks += 1
            run.state = Cancelled() if self.looks > 3 else run.state
        if run.state is not None and run.state.is_running():
            run.state = self.step(run)
        return run

    def set_flow_run_state(self, flow_run: UUID, state: State, force: bool) -> None:
        if state.is_scheduled():
            assert force
            state = Running()
        self.runs[flow_run].state = state

    def step(self, run: FlowRun) -> State:
        number = self.names.index(run.name)
        if number in self.broken:
            return Failed(message="algo.gamma=2: must be <= 1")
        job = self.sweep.job(int(run.name.split(":")[0].split()[1]))
        if "update_epochs=9" in run.name:
            return Failed(message="nine is too many")
        training = next(t for t in job.trainings if t.state != "over")
        note = training.run_dir / ".prune"
        if note.exists():
            write_json(training.run.summary, {"status": "pruned"})
            return Completed()
        done = len(training.scores)
        if done == 1 and self.crashes.get(number, 0) > 0:
            self.crashes[number] -= 1
            return Crashed()
        evaluate(training, self.sweep.study.params(job.number or 0), done + 1)
        training.run.config.write_text(
            "{seed: 1, algo: {name: ppo}, env: {id: CartPole-v1}, model_manager: {disabled: true}}\n"
        )
        if done + 1 == EVALUATIONS:
            write_json(training.run.summary, {"status": "finished"})
            return Completed()
        return Running()


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> None:
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    monkeypatch.setattr(study_module, "open_storage", lambda url: storages.setdefault(url, memory()))
    monkeypatch.setattr(deployed, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(deployed, "compose", lambda _: [SimpleNamespace(algo=SimpleNamespace(name="ppo"))])


def drive_pool(folder: Any, pool: Pool, monkeypatch: pytest.MonkeyPatch, stop_after: int = 10**9) -> Sweep:
    @contextlib.contextmanager
    def client(**_: Any) -> Iterator[Pool]:
        yield pool

    monkeypatch.setattr(deployed, "run_deployment", pool.run_deployment)
    monkeypatch.setattr(deployed, "get_client", client)
    sweep = pool.sweep = Sweep(folder, folder.read())
    sweep.executor = WorkPoolExecutor(sweep, "default")
    for started, job in enumerate(trials(sweep)):
        sweep.executor.start(job)
        if started + 1 >= stop_after:
            break
    return sweep


def test_work_pool_trials_match_local_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = trial_results(drive(make_sweep(tmp_path, "here", *FEW)[0], 2))
    pool = Pool()
    remote = trial_results(drive_pool(make_sweep(tmp_path, "there", *FEW)[0], pool, monkeypatch))
    # without attributes, which contain the policy steps of a late read
    assert [trial[:5] for trial in remote] == [trial[:5] for trial in local]
    assert "PRUNED" in {trial[1] for trial in remote}
    assert len(pool.runs) == 6 and all(run.state and run.state.is_final() for run in pool.runs.values())


def test_work_pool_trials_have_plugins_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in other processes, whose environment may not name the plugins."""
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.probes.envs,tests.probes.callbacks")
    pool = Pool()
    drive_pool(make_sweep(tmp_path, "plugins", "sweep.trials=2", *FEW[1:])[0], pool, monkeypatch)
    assert [words[-1] for words in pool.overrides] == ["plugins=[tests.probes.envs,tests.probes.callbacks]"] * 2


def test_crashed_flow_run_is_retried_until_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(crashes={0: 2, 1: 10**9}, broken=(2,))
    few = [line for line in FEW if line != "sweep.warmup=0"]
    folder = make_sweep(tmp_path, "crashes", *few, "sweep.pruner=none")[0]
    with pytest.raises(ProcessKilled, match="trial 1 is unfinished"):
        drive_pool(folder, pool, monkeypatch)
    assert pool.crashes[1] == 10**9 - 2 * (DEATHS + 1)  # once more for the retry without other trials
    sweep = drive_pool(folder, pool, monkeypatch)
    states = [trial.state.name for trial in sweep.study.trials]
    assert states[:3] == ["COMPLETE", "FAIL", "FAIL"]
    assert sweep.study.trials[2].user_attrs["sentence"] == "algo.gamma=2: must be <= 1"
    assert len(pool.runs) == 6  # no flow run is created twice


def test_new_driver_adopts_existing_flow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trial_results(drive_pool(make_sweep(tmp_path, "whole", *FEW)[0], Pool(), monkeypatch))
    folder, pool = make_sweep(tmp_path, "gone", *FEW)[0], Pool()
    drive_pool(folder, pool, monkeypatch, stop_after=3)
    assert len(pool.runs) == 3
    again = trial_results(drive_pool(folder, pool, monkeypatch))
    assert [trial[:5] for trial in again] == [trial[:5] for trial in whole]
    assert len(pool.runs) == 6


def states_after_interrupt(
    folder: Any, pool: Pool, monkeypatch: pytest.MonkeyPatch, sweeps: State, raised: BaseException
) -> list[str]:
    """Interrupt a sweep's driver after two started trials, and return the states of their flow runs."""
    monkeypatch.setattr(deployed, "PARTING_LOOK", 0.0)
    own = FlowRun(id=uuid4(), flow_id=uuid4(), name="sweep", state=sweeps)
    sweep = drive_pool(folder, pool, monkeypatch, stop_after=2)
    waits = list(pool.runs.values())[1]
    waits.state = Scheduled()
    pool.runs[own.id] = own
    with pytest.raises(type(raised)), deployed.cancel_with(own.id, sweep.executor):  # pyright: ignore[reportArgumentType]
        raise raised
    return [run.state.type.value for run in pool.runs.values() if run.state and run is not own]


def test_cancelled_sweep_cancels_its_flow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sweep(tmp_path, "cancelled", *FEW)[0]
    assert states_after_interrupt(folder, Pool(), monkeypatch, Cancelling(), KeyboardInterrupt()) == ["CANCELLED"] * 2


def test_crashed_sweep_keeps_its_flow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sweep(tmp_path, "lost", *FEW)[0]
    states = states_after_interrupt(folder, Pool(), monkeypatch, Crashed(), KeyboardInterrupt())
    assert states == ["RUNNING", "SCHEDULED"]
