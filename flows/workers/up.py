"""`make up` and `make down`: Prefect and MLflow servers, pools, deployments and workers of this machine.

    python -m flows.workers.up up | down | status | deploy

What is running already is kept; `down` ends what `up` started, also one that was killed, and nothing else. `deploy`
brings the pools and deployments to a server elsewhere, which PREFECT_API_URL names.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from flows.config.search_path import BUILT_IN, config_folders
from flows.process.exits import told
from flows.process.locks import locked
from flows.report.command_lines import bin_folder, resume_command, short_path
from flows.runs.trainer import resumes
from flows.settings import artifact_root, configure_environment, database_lock, home, state_folder
from flows.tracking.mlflow_store import prepare_store
from flows.workers import servers
from flows.workers.dotenv import NAMES, USER, client_variables, kept_password, write_dotenv
from flows.workers.pools import deploy
from flows.workers.servers import Server
from rlcore.errors import UserError
from rlcore.system.lifeline import import_path

PORTS = {"prefect": ("SHEPHERD_PREFECT_PORT", 4200), "mlflow": ("SHEPHERD_MLFLOW_PORT", 5000)}
IN_USE = "uses the databases here without a server; wait for its end, or end it: `shepherd resume` continues a training"


def up() -> None:
    """Bring everything up that is not; print where it is and how to use it."""
    if not (home() / "flows/train.py").exists():
        raise UserError(f"SHEPHERD_HOME={home()}: no flows/train.py there; `make up` works in a checkout")
    with locked(servers.folder() / "lock"), locked(database_lock(), refusal=IN_USE):
        configure_environment()
        limits = _limits()  # a mistake is told before anything is started
        _check_ports()
        prepare_store(_store())  # a server that is killed while it makes its tables leaves none that can be mended
        urls = {name: f"http://127.0.0.1:{_port(name)}" for name in PORTS}
        variables = client_variables(urls["prefect"], urls["mlflow"], kept_password(servers.folder() / "password"))
        os.environ.update(variables)
        both = _prefect(), _mlflow()
        for server in both:
            _start(server)
        for server in both:
            servers.wait_until_ready(server)
            _say(server.name, "answers")
        write_dotenv(variables)
        names = deploy(limits)
        gpus = visible_gpus()
        for server in map(_worker, ("", *gpus)):
            _start(server)
        print(_page(urls, names, bool(gpus)))


def down() -> None:
    """End what `up` started, workers first, so that trainers can write their checkpoints; nothing else."""
    with locked(servers.folder() / "lock"):
        trained = servers.being_trained()
        # A worker told to end kills its flows at once; flows whose worker is gone end by themselves, and well.
        servers.end(("worker",), signal.SIGKILL)
        servers.wait_until(lambda: not any("worker" in kind for _, kind in servers.marked()), servers.STOP_TIMEOUT)
        servers.end(("prefect", "mlflow"), signal.SIGTERM)
        servers.end_what_is_left()
        write_dotenv({})
        for run in trained:
            if not run.taken() and run.read_summary().get("status") != "finished":
                command = resume_command(short_path(run.path), run.read_config().get("plugins"))
                print(f"interrupted: `{command}` goes on {resumes(run)}")
        print("everything that `make up` started has ended; in a terminal that loaded .env:")
        print(f"  unset {' '.join(NAMES)}")


def status() -> None:
    """Print what is running of it."""
    lines = [f"{name:<16} pid {pid}" for name, pid in servers.running().items()]
    print("\n".join(lines) or "nothing is running; `make up` starts it")


def deploy_elsewhere() -> None:
    """Bring pools and deployments to the server that PREFECT_API_URL names."""
    configure_environment()
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL is not set; `make up` starts a server here and deploys to it")
    servers.check_servers()
    print("\n".join(deploy(_limits())))


def _prefect() -> Server:
    port = _port("prefect")
    api = f"http://127.0.0.1:{port}/api"
    variables = {
        "PREFECT_API_URL": "",
        "PREFECT_UI_API_URL": api,
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_API_AUTH_STRING": os.environ["PREFECT_API_AUTH_STRING"],
        # Without these `prefect deployment run --watch` shows no line of the flow's log.
        "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
        "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
    }
    command = (sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    return Server("prefect", command, variables, f"{api}/health")


def _mlflow() -> Server:
    port = _port("mlflow")
    command = (sys.executable, "-P", "-m", "mlflow", "server", "--app-name", "shepherd", "--workers", "2")
    address = ("--host", "127.0.0.1", "--port", str(port))
    # Files lie where they lie without a server, so that its runs can be continued when it is down.
    stores = ("--backend-store-uri", _store(), "--default-artifact-root", artifact_root())
    variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes fewer; nothing here uses them
    return Server("mlflow", (*command, *address, *stores), variables, f"http://127.0.0.1:{port}/health")


def _store() -> str:
    """Of the MLflow server; without one, commands open the same file."""
    return f"sqlite:///{state_folder() / 'mlflow.db'}"


def _worker(gpu: str = "") -> Server:
    """The worker of a GPU, or that of pool local."""
    name, pool = (f"worker-gpu-{gpu}", "gpu") if gpu else ("worker-local", "local")
    command = (sys.executable, "-m", "flows.workers.restart", "flows.workers.worker", "--pool", pool)
    options = ("--name", f"{name}-{os.uname().nodename}", *(("--limit", "1") if gpu else ()))
    # The heartbeat is the sign of life that a flow run gives (flows.workers.worker).
    variables = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    # It works in `home()`; a user's plugins and configs may lie here.
    own = [str(folder) for folder in config_folders() if folder != BUILT_IN]
    variables |= {"PYTHONPATH": import_path(), "SHEPHERD_SEARCH_PATH": ";".join(own), "SHEEPRL_SEARCH_PATH": ""}
    return Server(name, (*command, *options), variables | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}))


def visible_gpus() -> list[str]:
    """GPUs that torch can use here; asked in another process, which takes seconds only where there may be one."""
    if shutil.which("nvidia-smi") is None:
        return []
    code = "import torch; print(torch.cuda.device_count())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    count, chosen = int(said.stdout.strip() or 0), os.environ.get("CUDA_VISIBLE_DEVICES")
    return chosen.split(",")[:count] if chosen else [str(gpu) for gpu in range(count)]


def _check_ports() -> None:
    """Refuse ports that the servers cannot have; what a server that was killed has left on its port is ended."""
    if _port("prefect") == _port("mlflow"):
        raise UserError(f"SHEPHERD_MLFLOW_PORT={_port('mlflow')}: Prefect's server has this port; choose another one")
    for name, (key, _) in PORTS.items():
        port, had = _port(name), servers.port_of(name)
        if had is None:
            servers.end_what_is_left(name)
            if why := servers.occupied(port):
                raise UserError(f"{key}={port}: {why}; set {key} to a free port, here or in .env")
        elif had != port:
            raise UserError(f"{key}={port}: {name} is running on port {had}; `make down` first, or keep to that one")


def _start(server: Server) -> None:
    _say(server.name, f"started; log {servers.log_of(server)}" if servers.start(server) else "runs already")


def _port(name: str) -> int:
    return _number(*PORTS[name], "a port, 1 to 65535", 65535)


def _limits() -> dict[str, int | None]:
    """How many flow runs each pool runs at once. GPU workers have a place each."""
    local = _number("SHEPHERD_LOCAL_LIMIT", max(2, os.cpu_count() or 1), "a number of runs, 1 to 1000", 1000)
    return {"local": local, "gpu": None}


def _number(key: str, default: int, what: str, highest: int) -> int:
    text = os.environ.get(key) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        raise UserError(f"{key}={text}: must be {what}")
    return int(text)


def _page(urls: dict[str, str], names: list[str], has_gpu: bool) -> str:
    waits = "" if has_gpu else "  (no GPU here: runs wait for `prefect worker start --pool gpu` on a machine with one)"
    local, gpu = (", ".join(name for name in names if name.endswith(end)) for end in ("/default", "/gpu"))
    # In a log nobody is to read it.
    password = os.environ["MLFLOW_TRACKING_PASSWORD"] if sys.stdout.isatty() else "$MLFLOW_TRACKING_PASSWORD"
    where = shlex.quote(str(home() / ".env"))
    activate = Path(sys.executable).with_name("activate")
    first = f". {shlex.quote(str(activate))}; " if bin_folder() and activate.exists() else ""
    return f"""
  Prefect         {urls["prefect"]}
  MLflow          {urls["mlflow"]}
  a browser asks  MLflow: user {USER}, password {password}; Prefect: {USER}:{password}
  pool local      {local}
  pool gpu        {gpu}{waits}

  for this terminal:   {first}set -a; . {where}; set +a
  then:                prefect deployment run {names[0]} --watch
  and at the end:      make down"""


def _say(name: str, words: str) -> None:
    print(f"  {name:<22} {words}", flush=True)


def main(arguments: list[str]) -> int:
    """Entry point; exit codes as `shepherd`'s."""
    commands = {"up": up, "down": down, "status": status, "deploy": deploy_elsewhere}

    def run() -> int:
        if len(arguments) != 1 or arguments[0] not in commands:
            raise UserError(f"flows.workers.up: one of {', '.join(commands)}")
        commands[arguments[0]]()
        return 0

    return told(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
