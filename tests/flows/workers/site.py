"""Servers and workers of a checkout on loopback, with their own home, and requests to them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dotenv import dotenv_values

from rlcore.store.directory import RunDirectory
from tests import processes
from tests.processes import ROOT, count, environment, free_port, wait_for
from tests.retries import run_command


class Site:
    """Servers of a checkout with their own home."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        for name in ("pyproject.toml", "flows", "rlcore", "conf"):
            (home / name).symlink_to(ROOT / name)
        ports = {f"SHEPHERD_{server}_PORT": str(free_port()) for server in ("PREFECT", "MLFLOW")}
        self.variables = environment(home, **ports, **variables)

    def servers(self, command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flows.workers.up", command],
            cwd=self.home,
            env=self.variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def dotenv(self) -> dict[str, str | None]:
        return dotenv_values(self.home / ".env")

    def ask(self, path: str, **body: Any) -> Any:
        url = f"http://127.0.0.1:{self.variables['SHEPHERD_PREFECT_PORT']}/api/{path}"
        login = base64.b64encode(str(self.dotenv()["PREFECT_API_AUTH_STRING"]).encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
        request = Request(url, json.dumps(body).encode() if body else None, headers)
        for pause in (1, 2, 4, 8, 0):  # 503: SQLite is busy; Prefect's client retries as well
            try:
                with urlopen(request, timeout=120) as answer:
                    return json.load(answer)
            except HTTPError as error:
                if error.code != 503 or not pause:
                    raise
                time.sleep(pause)
        return None

    def submit(self, *overrides: str, **more: str) -> str:
        return self.start("train-ppo/default", overrides=list(overrides), **more)

    def start(self, name: str, **parameters: Any) -> str:
        deployment = self.ask(f"deployments/name/{name}")["id"]
        return self.ask(
            f"deployments/{deployment}/create_flow_run", parameters=parameters, state={"type": "SCHEDULED"}
        )["id"]

    def state(self, flow_run: str) -> tuple[str, str]:
        state = self.ask(f"flow_runs/{flow_run}")["state"]
        return state["type"], state["message"] or ""

    def ended(self, flow_run: str, seconds: float = 300) -> tuple[str, str]:
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return wait_for(lambda: (s := self.state(flow_run))[0] in final and s, "the end", seconds, every=0.3)

    def prefect(self, *words: str, code: int = 0) -> str:
        """Run a `prefect` command with the variables of .env; it must exit with `code`."""
        return self._run([str(Path(sys.executable).with_name("prefect")), *words], code)

    def python(self, *words: str) -> str:
        """Run Python with the variables of .env; it must succeed."""
        return self._run([sys.executable, *words], 0)

    def _run(self, command: list[str], code: int) -> str:
        loaded = {name: value for name, value in self.dotenv().items() if value is not None}
        own = self.variables | loaded | {"PREFECT_HOME": str(self.home / ".shepherd/prefect")}
        done = run_command(command, cwd=self.home, env=own, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def log_of(self, flow_run: str, level: int = 0) -> str:
        """Log of a flow run: messages of this level or higher."""
        wanted = {"flow_run_id": {"any_": [flow_run]}, "level": {"ge_": level}}
        entries = self.ask("logs/filter", logs=wanted, limit=200, offset=0)
        return "\n".join(entry["message"] for entry in entries)

    def run(self, flow_run: str) -> RunDirectory:
        def find_runs() -> list[RunDirectory]:
            runs = (RunDirectory(path.parent) for path in (self.home / "runs").rglob("run.json"))
            return [run for run in runs if run.read_identity().get("flow_run") == flow_run]

        return wait_for(find_runs, "the run directory", every=0.1)[0]

    def trained(self, flow_run: str) -> RunDirectory:
        """The run, once it has a checkpoint."""
        run = self.run(flow_run)
        wait_for(lambda: count(run, "checkpoint"), "a checkpoint", every=0.05)
        return run

    def processes(self, word: str) -> list[int]:
        """Processes of this home with this word in their command line."""
        return [p.pid for p in processes.processes(self.home) if word in " ".join(p.words)]
