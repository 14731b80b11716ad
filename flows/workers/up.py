"""`make up` and `make down`: Prefect and MLflow servers, pools, deployments and workers of this machine.

    python -m flows.workers.up up | down | status

What is running already is kept; `down` ends what `up` started, also one that was killed, and nothing else.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.exits import told
from flows.process.files import locked
from flows.report.command_lines import place, resume_command, shown
from flows.runs.trainer import resumes
from flows.settings import artifact_folder, configure_environment, home, state_folder
from flows.tracking.mlflow_store import prepare_store
from flows.workers import servers as served
from flows.workers.servers import Server
from rlcore.errors import RunError, UserError
from rlcore.store.directory import write_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

BEGIN, END = "# written by make up; make down takes it away", "# end of make up"
PORTS = {"prefect": ("SHEPHERD_PREFECT_PORT", 4200), "mlflow": ("SHEPHERD_MLFLOW_PORT", 5000)}
OURS = ("PREFECT_API_URL=", "MLFLOW_TRACKING_URI=", END)
RULE = "shepherd: a flow run that gives no sign of life has crashed"
HEARTBEAT, SILENCE = 30, 115  # seconds between signs of life of a flow run, and without one until it counts as crashed


def up() -> None:
    """Bring everything up that is not; print where it is and how to use it.

    Raises:
        UserError: another program has a port, or there is no checkout with a prefect.yaml.
        RunError: a server did not start; names its log.
    """
    _check_checkout()
    with locked(served.folder() / "lock"):
        configure_environment()
        urls = {name: f"http://127.0.0.1:{_port(name)}" for name in PORTS}
        variables = {"PREFECT_API_URL": f"{urls['prefect']}/api", "MLFLOW_TRACKING_URI": urls["mlflow"]}
        _local_limit()  # a mistake is told before anything is started
        _check_ports()
        prepare_store(_store())  # a server that is killed while it makes its tables leaves none that can be mended
        if served.port_of("prefect") is None:
            _forgive_silence()
        for server in (_prefect(), _mlflow()):
            _start(server)
        for server in (_prefect(), _mlflow()):
            _wait(server)
        _write_dotenv(variables)
        os.environ.update(variables)
        _say("pools and deployments", "from prefect.yaml")
        _make_pools()
        _deploy()
        gpus = visible_gpus()
        for server in (_local_worker(), *(_gpu_worker(index) for index in range(gpus))):
            _start(server)
        print(_page(urls, gpus))


def down() -> None:
    """End what `up` started, workers first, so that trainers can write their checkpoints; nothing else."""
    with locked(served.folder() / "lock"):
        trained = served.being_trained()
        # A worker told to end kills its flows at once; flows whose worker is gone end by themselves, and well.
        served.end(("worker",), signal.SIGKILL)
        served.wait_until(
            lambda: not any(kind.startswith("worker") for _, kind in served.marked()), served.STOP_TIMEOUT
        )
        served.end(("prefect", "mlflow"), signal.SIGTERM)
        served.end_what_is_left()
        _write_dotenv({})
        for run in trained:
            if not run.taken() and run.read_summary().get("status") != "finished":
                print(f"interrupted: `{resume_command(shown(run.path))}` goes on {resumes(run)}")
        print("everything that `make up` started has ended; in a terminal that loaded .env:")
        print("  unset PREFECT_API_URL MLFLOW_TRACKING_URI")


def status() -> None:
    """Print what is running of it."""
    running = list(served.running())
    print("\n".join(f"{name:<16} pid {pid}" for pid, name in running) or "nothing is running; `make up` starts it")


# What is started ------------------------------------------------------------------------------------------------------


def _prefect() -> Server:
    port = _port("prefect")
    here = f"http://127.0.0.1:{port}"
    return Server(
        "prefect",
        (_tool("prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port)),
        {"PREFECT_UI_API_URL": f"{here}/api", "PREFECT_SERVER_EPHEMERAL_ENABLED": "false", "PREFECT_API_URL": ""},
        f"{here}/api/health",
    )


def _mlflow() -> Server:
    port = _port("mlflow")
    command = (_tool("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", _store())
    return Server(
        "mlflow",
        # Files lie where they lie without a server, so that its runs can be continued when it is down.
        (*command, "--default-artifact-root", artifact_folder().as_uri(), "--workers", "2"),
        {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # eight processes fewer; nothing here uses them
        f"http://127.0.0.1:{port}/health",
    )


def _store() -> str:
    """Of the MLflow server; without one, commands open the same file."""
    return f"sqlite:///{state_folder() / 'mlflow.db'}"


def _local_worker() -> Server:
    return _worker("local", "worker-local", {})


def _gpu_worker(index: int) -> Server:
    return _worker("gpu", f"worker-gpu-{index}", {"CUDA_VISIBLE_DEVICES": str(index)}, "--limit", "1")


def _worker(pool: str, name: str, variables: dict[str, str], *options: str) -> Server:
    command = (sys.executable, "-m", "flows.workers.worker", "--pool", pool, *options)
    own = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT)}
    return Server(name, (*command, "--name", f"{name}-{os.uname().nodename}"), own | variables)


def visible_gpus() -> int:
    """GPUs that torch can use here; asked in another process, which takes seconds only where there may be one."""
    if shutil.which("nvidia-smi") is None:
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(said.stdout.strip() or 0)


def _make_pools() -> None:
    """Pools `local` and `gpu`, and the rule by which a flow run without a sign of life counts as crashed."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    # A worker's own --limit would do for `local` too, but with it Prefect 3.8's worker ends over a flow run that is
    # retried within seconds of its crash, and everything that it runs with it.
    limits = {"local": _local_limit(), "gpu": None}
    with get_client(sync_client=True) as client:
        for name, limit in limits.items():
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
            client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))
        _make_crash_rule(client)


def _make_crash_rule(client: SyncPrefectClient) -> None:
    from prefect.events.schemas.automations import AutomationCore

    ended = [f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Paused")]
    rule = {
        "name": RULE,
        "description": f"No heartbeat for {SILENCE} s: it was killed, and `prefect flow-run retry` continues it.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.heartbeat", *ended],
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": SILENCE,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"no sign of life for {SILENCE} s; `prefect flow-run retry` continues the run",
            }
        ],
    }
    if not client.read_automations_by_name(rule["name"]):
        client.create_automation(AutomationCore.model_validate(rule))


def _forgive_silence() -> None:
    """Let the time in which a flow run must give a sign of life begin anew: a server that was away has heard none.

    Prefect keeps these deadlines in its database and counts its own absence in; a flow run's client reaches the new
    server within 30 s.
    """
    path = state_folder() / "prefect/prefect.db"
    deadline = (
        """update automation_bucket set "end" = strftime('%Y-%m-%d %H:%M:%f000', 'now', ?)"""
        " where automation_id in (select id from automation where name = ?)"
    )
    if path.exists():  # else the user has told Prefect to keep it elsewhere
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as store, store:
            store.execute(deadline, (f"+{SILENCE} seconds", RULE))


def _deploy() -> None:
    done = subprocess.run(
        [_tool("prefect"), "--no-prompt", "deploy", "--all"], cwd=home(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        (served.folder() / "deploy.log").write_text(done.stdout + done.stderr)
        raise RunError(f"prefect deploy failed; what it said is in {served.folder() / 'deploy.log'}")


def _check_ports() -> None:
    """Refuse ports that the servers cannot have; what a server that was killed has left on its port is ended."""
    if _port("prefect") == _port("mlflow"):
        raise UserError(f"SHEPHERD_MLFLOW_PORT={_port('mlflow')}: Prefect's server has this port; choose another one")
    for name, (key, _) in PORTS.items():
        port, had = _port(name), served.port_of(name)
        if had is None:
            served.end_what_is_left(name)
            if why := served.occupied(port):
                raise UserError(f"{key}={port}: {why}; set {key} to a free port, here or in .env")
        elif had != port:
            raise UserError(f"{key}={port}: {name} is running on port {had}; `make down` first, or keep to that one")


def _start(server: Server) -> None:
    _say(server.name, f"started; log {served.log_of(server)}" if served.start(server) else "runs already")


def _wait(server: Server) -> None:
    served.wait_until_ready(server)
    _say(server.name, "answers")


# Words ----------------------------------------------------------------------------------------------------------------


def _port(name: str) -> int:
    return _number(*PORTS[name], "a port, 1 to 65535", 65535)


def _local_limit() -> int:
    """How many flow runs the pool `local` trains at once."""
    return _number("SHEPHERD_LOCAL_LIMIT", max(2, os.cpu_count() or 1), "a number of runs, 1 to 1000", 1000)


def _number(key: str, default: int, what: str, highest: int) -> int:
    """A number from 1 from the environment."""
    text = os.environ.get(key) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        raise UserError(f"{key}={text}: must be {what}")
    return int(text)


def _tool(name: str) -> str:
    """A command of this very environment, whatever PATH says."""
    return str(Path(sys.executable).with_name(name))


def _check_checkout() -> None:
    if not (home() / "prefect.yaml").exists():
        raise UserError(f"SHEPHERD_HOME={home()}: no prefect.yaml there; `make up` works in a checkout")


def _write_dotenv(variables: dict[str, str]) -> None:
    """Put the variables between our two lines of `.env`, or take the lines away; the user's own lines stay."""
    path = home() / ".env"
    text = path.read_text() if path.exists() else ""
    before, found, rest = text.partition(f"{BEGIN}\n")
    _, ended, after = rest.partition(f"{END}\n")
    if found and not ended:  # somebody took that line away
        after = "".join(line for line in rest.splitlines(keepends=True) if not line.startswith(OURS))
    block = "".join(f"{name}={value}\n" for name, value in variables.items())
    block = f"{BEGIN}\n{block}{END}\n" if block else ""
    if before and not before.endswith("\n"):
        before += "\n"
    if not before + block + after:
        path.unlink(missing_ok=True)
    else:
        write_text(path, before + block + after)


def _page(urls: dict[str, str], gpus: int) -> str:
    waits = "" if gpus else "  (no GPU here: its runs wait for `prefect worker start --pool gpu` on a machine with one)"
    where = shlex.quote(str(home() / ".env"))
    activate = Path(sys.executable).with_name("activate")
    first = f". {shlex.quote(str(activate))}; " if place() and activate.exists() else ""
    return f"""
  Prefect         {urls["prefect"]}
  MLflow          {urls["mlflow"]}
  pool local      train-ppo/default
  pool gpu        train-ppo/gpu{waits}

  for this terminal:   {first}set -a; . {where}; set +a
  then:                prefect deployment run train-ppo/default --watch
  and at the end:      make down"""


def _say(name: str, words: str) -> None:
    print(f"  {name:<22} {words}", flush=True)


def main(arguments: list[str]) -> int:
    """Entry point; exit codes as `shepherd`'s."""
    commands = {"up": up, "down": down, "status": status}

    def run() -> int:
        if len(arguments) != 1 or arguments[0] not in commands:
            raise UserError(f"flows.workers.up: one of {', '.join(commands)}")
        commands[arguments[0]]()
        return 0

    return told(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
