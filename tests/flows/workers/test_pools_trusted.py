"""A worker starts only flow runs whose code, command and variables are defined by this project's code."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import State
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.workers.pools import CLONE, SET_DIRECTORY
from flows.workers.worker import ShepherdWorker, refusal

OURS = "https://example.org/ours.git"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = {"command": "python -m prefect.engine", "env": {"A": "1"}, "working_dir": None}
SHELL = "prefect.deployments.steps.run_shell_script"


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.setenv("SHEPHERD_REPOSITORY", OURS)
    return tmp_path


def deployment(home: Path, **changed: Any) -> Any:
    """The deployment train-ppo/default as created by `make up`, with changes."""
    steps = [{SET_DIRECTORY: {"directory": str(home)}}]
    return SimpleNamespace(
        **{"name": "default", "entrypoint": "flows/train.py:train_ppo", "pull_steps": steps} | changed
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"name": "gpu"},
        {"name": "default", "entrypoint": "flows/comparison.py:compare"},
        {"pull_steps": [{CLONE: {"repository": OURS, "commit_sha": COMMIT}}]},
    ],
)
def test_refusal_allows_defined_deployments(checkout: Path, changed: dict[str, Any]) -> None:
    assert refusal(deployment(checkout, **changed), JOB, dict(JOB)) == ""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "nightly"}, "defines no deployment nightly"),
        ({"entrypoint": "/tmp/evil.py:train_ppo"}, "defines no deployment default (/tmp/evil.py:train_ppo)"),
        ({"entrypoint": None}, "defines no deployment"),
        ({"name": "gpu", "entrypoint": "flows/comparison.py:compare"}, "defines no deployment gpu"),
        ({"pull_steps": None}, "comes neither from"),
        ({"pull_steps": []}, "comes neither from"),
        ({"pull_steps": [{SET_DIRECTORY: {"directory": "/tmp"}}]}, "comes neither from"),
        ({"pull_steps": [{SHELL: {"script": "touch /tmp/x"}}]}, "comes neither from"),
        (
            {"pull_steps": [{CLONE: {"repository": "https://evil.example", "commit_sha": COMMIT}}]},
            "SHEPHERD_REPOSITORY",
        ),
        ({"pull_steps": [{CLONE: {"repository": OURS, "commit_sha": "main"}}]}, "comes neither from"),
        (
            {"pull_steps": [{CLONE: {"repository": OURS, "commit_sha": COMMIT, "include_submodules": True}}]},
            "comes neither from",
        ),
        (
            {"pull_steps": [{CLONE: {"repository": OURS, "commit_sha": COMMIT}, SHELL: {"script": "touch /tmp/x"}}]},
            "comes neither from",
        ),
        (
            {"pull_steps": [{CLONE: {"repository": OURS, "commit_sha": COMMIT}}, {SHELL: {"script": "touch /tmp/x"}}]},
            "comes neither from",
        ),
    ],
)
def test_refusal_names_undefined_code(checkout: Path, changed: dict[str, Any], reason: str) -> None:
    assert reason in refusal(deployment(checkout, **changed), JOB, dict(JOB))


def test_refusal_rejects_clone_without_repository(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHEPHERD_REPOSITORY")
    steps = [{CLONE: {"repository": None, "commit_sha": COMMIT}}]
    for repository in (OURS, None):
        steps[0][CLONE]["repository"] = repository
        assert "comes neither from" in refusal(deployment(checkout, pull_steps=steps), JOB, dict(JOB))


def test_refusal_names_changed_job_variables(checkout: Path) -> None:
    changed = JOB | {"command": "touch /tmp/x", "env": {"A": "2"}}
    assert "change command, env;" in refusal(deployment(checkout), changed, JOB)


def test_refusal_requires_deployment() -> None:
    assert "has no deployment" in refusal(None, JOB, dict(JOB))


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, ""),
        ({"command": "touch /tmp/x"}, "change command;"),
        ({"env": {"PYTHONPATH": "/tmp/evil"}}, "change env;"),
        ({"env.LD_PRELOAD": "/tmp/evil.so"}, "change env;"),
        ({"working_dir": "/tmp"}, "change working_dir;"),
    ],
)
def test_worker_run_starts_no_refused_process(
    checkout: Path, variables: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect creates the configuration from the job variables of the flow run and the template of the pool."""
    flow_run = FlowRun(id=UUID(int=1), flow_id=UUID(int=2), deployment_id=UUID(int=3), job_variables=variables)
    started: list[str] = []
    states: list[State[Any]] = []
    flow = SimpleNamespace(name="train-ppo", id=UUID(int=2), model_dump=lambda **_: {})
    ours = SimpleNamespace(**vars(deployment(checkout)), id=UUID(int=3), job_variables={}, updated=None)
    pool = SimpleNamespace(
        name="local", id=UUID(int=4), base_job_template=ProcessWorker.get_default_base_job_template()
    )

    class Client:
        async def read_deployment(self, _: UUID) -> Any:
            return ours

        async def read_flow(self, _: UUID) -> Any:
            return flow

        async def read_flow_run_states(self, _: UUID) -> list[Any]:
            return []

        async def set_flow_run_state(self, _: UUID, state: State[Any], force: bool) -> None:
            states.append(state)

    async def process(self: Any, *_: Any) -> Any:
        started.append("process")
        return SimpleNamespace(status_code=0)

    async def scene() -> None:
        worker = ShepherdWorker("local", "w")
        worker._work_pool, worker._client = pool, Client()  # pyright: ignore[reportAttributeAccessIssue]
        configuration = await ProcessJobConfiguration.resolve_for_flow_run(
            flow_run,
            client=worker._client,  # pyright: ignore[reportArgumentType]
            work_pool=pool,  # pyright: ignore[reportArgumentType]
            worker_name="w",
        )
        assert (await worker.run(flow_run, configuration)).status_code == 0

    monkeypatch.setattr(ProcessWorker, "run", process)
    monkeypatch.setattr(ShepherdWorker, "get_flow_run_logger", lambda *_: logging.getLogger("test"))
    asyncio.run(scene())
    assert started == ([] if reason else ["process"])
    assert [state.type.value for state in states] == (["FAILED"] if reason else [])
    assert all(reason in str(state.message) for state in states)
