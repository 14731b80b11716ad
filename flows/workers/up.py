"""`make up` and `make down`: Prefect and MLflow servers, pools, deployments and workers of this machine.

    python -m flows.workers.up up [postgres] | down | status | deploy

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
import time
from pathlib import Path

from flows.config.search_path import BUILT_IN, config_folders
from flows.process.exits import run_command
from flows.process.locks import hold
from flows.report.command_lines import bin_folder, continue_command
from flows.runs.milestones import is_over
from flows.runs.trainer import resumes
from flows.settings import (
    DATABASE,
    LOOPBACK,
    artifact_root,
    configure_environment,
    database_lock,
    database_url,
    home,
    server_host,
    state_folder,
)
from flows.tracking.mlflow_store import prepare_store
from flows.workers import postgres, servers
from flows.workers.dotenv import NAMES, USER, client_variables, keep_password, write_dotenv
from flows.workers.mlflow_app import cross_site_settings
from flows.workers.pools import deploy
from flows.workers.servers import Server
from rlcore.errors import UserError
from rlcore.system.lifeline import import_path
from rlcore.system.printable import print_safely
from rlcore.system.secrets import redact

PORTS = {
    "prefect": ("SHEPHERD_PREFECT_PORT", 4200),
    "mlflow": ("SHEPHERD_MLFLOW_PORT", 5000),
    "postgres": ("SHEPHERD_POSTGRES_PORT", 5442),  # beside that of a system's own server
}
PUBLIC = ("prefect", "mlflow")  # those that clients ask
IN_USE = "uses the databases here without a server; wait for its end, or end it: `shepherd resume` continues a training"


def up(kind: str = "") -> None:
    """Bring everything up that is not; print where it is and how to use it.

    `kind` is "postgres" where SQLite is not to do; a server that SHEPHERD_DATABASE_URL names is used in any case.
    """
    if kind not in ("", "postgres"):
        raise UserError(f"DB={kind}: only DB=postgres is known; without it SQLite files do")
    if not (home() / "flows/train.py").exists():
        raise UserError(f"SHEPHERD_HOME={home()}: no flows/train.py there; `make up` works in a checkout")
    with hold(servers.folder() / "lock"), hold(database_lock(), refusal=IN_USE):
        configure_environment()
        limit = _limit()  # a mistake is told before anything is started
        password = keep_password(servers.password_file())
        database = _database(kind, password)
        _check_ports((*PUBLIC, "postgres") if database else PUBLIC)
        _check_kept()
        if database:
            _start(database)
        if os.environ.get(DATABASE):
            postgres.make_databases(private=database is not None)
        prepare_store(_store())  # a server that is killed while it makes its tables leaves none that can be mended
        urls = {name: _url(name) for name in PUBLIC}
        variables = client_variables(urls["prefect"], urls["mlflow"], password)
        variables |= {DATABASE: os.environ[DATABASE]} if database else {}
        os.environ.update(variables)
        both = _prefect(), _mlflow()
        for server in both:
            _start(server)
        for server in both:
            servers.wait_until_ready(server)
            _say(server.name, "answers")
        write_dotenv(variables)
        names = deploy()
        gpus = visible_gpus()
        for server in (_worker(limit), *(_worker(1, gpu) for gpu in gpus)):
            _start(server)
        print_safely(_page(urls, names, bool(gpus)))


def down() -> None:
    """End what `up` started, workers first, so that trainers can write their checkpoints; nothing else."""
    with hold(servers.folder() / "lock"):
        trained = servers.list_trained()
        # A worker told to end kills its flows at once; flows whose worker is gone end by themselves, and well.
        servers.end(("worker",), signal.SIGKILL)
        servers.wait_until(lambda: not any("worker" in kind for _, kind in servers.find_marked()), servers.STOP_TIMEOUT)
        servers.end(("prefect", "mlflow"), signal.SIGTERM)
        names = [*NAMES, DATABASE] if "postgres" in servers.running() else NAMES
        servers.end(("postgres",), signal.SIGINT)  # at SIGTERM it would wait for sweeps that still have it open
        servers.stop_leftovers()
        servers.remove_stopped()
        write_dotenv({})
        for run in trained:
            if not run.is_taken() and not is_over(run):
                command = continue_command(run.path, run.read_config().get("plugins"))
                print_safely(f"interrupted: `{command}` goes on {resumes(run)}")
        print_safely("everything that `make up` started has ended; in a terminal that loaded .env:")
        print_safely(f"  unset {' '.join(names)}")


def status() -> None:
    """Print what is running of it."""
    lines = [f"{name:<16} pid {pid}" for name, pid in servers.running().items()]
    print_safely("\n".join(lines) or "nothing is running; `make up` starts it")


def deploy_elsewhere() -> None:
    """Bring pools and deployments to the server that PREFECT_API_URL names."""
    configure_environment()
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL is not set; `make up` starts a server here and deploys to it")
    servers.check_servers()
    print_safely("\n".join(deploy()))


def _database(kind: str, password: str) -> Server | None:
    """The private PostgreSQL, where it is to be used; SHEPHERD_DATABASE_URL then names it."""
    own = postgres.private_url(servers.port_of("postgres") or _port("postgres"), password)
    chosen = os.environ.get(DATABASE) or (own if kind else "")
    if server_host() != LOOPBACK and not chosen:
        raise UserError(
            f"SHEPHERD_HOST={server_host()}: for other machines MLflow must keep all files itself, which it does on "
            f"PostgreSQL only; `make up DB=postgres`, or set {DATABASE}"
        )
    if not chosen:
        return None
    postgres.check_driver()
    os.environ[DATABASE] = chosen
    _store()  # refuses an address that is none
    return postgres.private_server(_port("postgres"), password) if chosen == own else None


def _prefect() -> Server:
    port = _port("prefect")
    api = f"{_url('prefect')}/api"
    variables = {
        "PREFECT_API_URL": "",
        "PREFECT_UI_API_URL": "/api",  # of the address that the page was loaded from, which may be a proxy's
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": _url("prefect"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_API_AUTH_STRING": os.environ["PREFECT_API_AUTH_STRING"],
        # In memory, leases would be forgotten by a server that starts again, and their places taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Without these `prefect deployment run --watch` shows no line of the flow's log.
        "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
        "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
    }
    if database := database_url("prefect", "asyncpg"):
        variables["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    command = (sys.executable, "-P", "-m", "flows.workers.prefect_app", "--host", server_host(), "--port", str(port))
    return Server("prefect", command, variables, f"{api}/health")


def _mlflow() -> Server:
    port = _port("mlflow")
    command = (sys.executable, "-P", "-m", "mlflow", "server", "--app-name", "shepherd", "--workers", "2")
    address = ("--host", server_host(), "--port", str(port))
    if os.environ.get(DATABASE):  # its clients may be on other machines: they hand files to the server
        files = ("--default-artifact-root", "mlflow-artifacts:/", "--artifacts-destination", artifact_root())
    else:  # they lie where they lie without a server, so that its runs can be continued when it is down
        files = ("--default-artifact-root", artifact_root())
    variables = {
        "MLFLOW_BACKEND_STORE_URI": _store(),  # not in the command line: it may hold a password
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes fewer; nothing here uses them
        **cross_site_settings(port),
    }
    return Server("mlflow", (*command, *address, *files), variables, f"{_url('mlflow')}/health")


def _store() -> str:
    """Of the MLflow server; without one, commands open the same file."""
    return database_url("mlflow", "psycopg2") or f"sqlite:///{state_folder() / 'mlflow.db'}"


def _check_kept() -> None:
    """Refuse to keep servers that have another database open than is wanted now."""
    wanted = {
        "prefect": ("PREFECT_API_DATABASE_CONNECTION_URL", database_url("prefect", "asyncpg")),
        "mlflow": ("MLFLOW_BACKEND_STORE_URI", database_url("mlflow", "psycopg2")),
    }
    for name, (key, database) in wanted.items():
        has = servers.variable_of(name, key)
        if has is not None and (has if has.startswith("postgresql") else None) != database:
            raise UserError(f"{name} is running on another database ({redact(has) or 'SQLite'}); `make down` first")


def _url(name: str) -> str:
    return f"http://{server_host()}:{_port(name)}"


def _worker(limit: int, gpu: str = "") -> Server:
    """The worker of a GPU, or that of pool local, with as many places."""
    name, pool = (f"worker-gpu-{gpu}", "gpu") if gpu else ("worker-local", "local")
    command = (sys.executable, "-m", "flows.workers.restart", "flows.workers.worker", "--pool", pool)
    options = (
        "--name",
        f"{name}-{os.uname().nodename}",
        "--limit",
        str(limit),
        *(() if gpu else ("--watch", f"{time.time():.0f}")),
    )
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


def _check_ports(names: tuple[str, ...] = PUBLIC) -> None:
    """Refuse ports that the servers cannot have; what a server that was killed has left on its port is ended."""
    if _port("prefect") == _port("mlflow"):
        raise UserError(f"SHEPHERD_MLFLOW_PORT={_port('mlflow')}: Prefect's server has this port; choose another one")
    for name in names:
        key = PORTS[name][0]
        port, had = _port(name), servers.port_of(name)
        if had is None:
            servers.stop_leftovers(name)
            if why := servers.why_occupied(port):
                raise UserError(f"{key}={port}: {why}; set {key} to a free port, here or in .env")
        elif had != port:
            raise UserError(f"{key}={port}: {name} is running on port {had}; `make down` first, or keep to that one")


def _start(server: Server) -> None:
    _say(server.name, f"started; log {servers.log_of(server)}" if servers.start(server) else "runs already")


def _port(name: str) -> int:
    return _number(*PORTS[name], "a port, 1 to 65535", 65535)


def _limit() -> int:
    """Number of flow runs that the worker of pool local runs at once. GPU workers have a place each."""
    return _number("SHEPHERD_LOCAL_LIMIT", max(2, os.cpu_count() or 1), "a number of runs, 1 to 1000", 1000)


def _number(key: str, default: int, what: str, highest: int) -> int:
    text = os.environ.get(key) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        raise UserError(f"{key}={text}: must be {what}")
    return int(text)


def _page(urls: dict[str, str], names: list[str], has_gpu: bool) -> str:
    waits = "" if has_gpu else "  (no GPU here: runs wait for a worker on a machine with one, docs/scaling.md)"
    local, gpu = (_gather(names, ending) for ending in ("/default", "/gpu"))
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


def _gather(names: list[str], ending: str) -> str:
    """Deployments of an ending as a shell writes them in short: those of the same kinds by the algorithms of all."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(ending):
            kind, dash, algorithm = name.removesuffix(ending).partition("-")
            kinds.setdefault(kind + dash, []).append(algorithm)
    alike: dict[str, list[str]] = {}
    for kind, algorithms in kinds.items():
        alike.setdefault(",".join(sorted(algorithms)), []).append(kind)

    def braces(of: str) -> str:
        return f"{{{of}}}" if "," in of else of

    return ", ".join(braces(",".join(sorted(of))) + braces(algorithms) + ending for algorithms, of in alike.items())


def _say(name: str, words: str) -> None:
    print_safely(f"  {name:<22} {words}", flush=True)


def main(arguments: list[str]) -> int:
    """Entry point; exit codes as `shepherd`'s."""
    commands = {"up": up, "down": down, "status": status, "deploy": deploy_elsewhere}

    def run() -> int:
        word, *more = arguments or [""]
        if word not in commands or len(more) > (word == "up"):
            raise UserError(f"flows.workers.up: one of {', '.join(commands)}; behind up, postgres may stand")
        commands[word](*more)
        return 0

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
