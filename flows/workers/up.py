"""Commands `make up` and `make down`, which start and stop Prefect and MLflow servers and workers on this machine.

    python -m flows.workers.up up [postgres] | down | status | deploy | databases

- up: starts servers and workers that are not running, and creates work pools and deployments.
- down: ends all processes that `up` has started, even if `up` was killed, and no others.
- status: lists the running servers and workers.
- deploy: creates the work pools and deployments on another server, that of PREFECT_API_URL.
- databases: creates the SQLite databases that commands without a server use. The set-up of the project runs it, because
  it takes ten seconds, so that the first training does not have to wait.
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

from flows.config.yaml_files import BUILT_IN, config_folders
from flows.prefect_repairs import describe_untried_version
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
    own_store,
    server_host,
    tracking_uri,
)
from flows.tracking.mlflow_store import prepare_store
from flows.workers import postgres, servers
from flows.workers.guard import NAMES, NO_TRACKING, USER, client_variables, keep_password, write_dotenv
from flows.workers.local_api import prefect_api
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
    "postgres": ("SHEPHERD_POSTGRES_PORT", 5442),  # not 5432, the port of a system-wide server
}
PUBLIC = ("prefect", "mlflow")  # servers that clients connect to
IN_USE = (
    "uses the databases of this home without a server; wait until it ends, or end it and continue its training later "
    "with `shepherd resume`"
)


def up(kind: str = "") -> None:
    """Start all servers and workers that are not running, and print their addresses and how to use them.

    Args:
        kind: "postgres" starts a private PostgreSQL server; "" uses SQLite files. If SHEPHERD_DATABASE_URL is set, its
            PostgreSQL server is used in both cases.
    """
    if kind not in ("", "postgres"):
        raise UserError(f"DB={kind}: must be postgres; omit DB to use SQLite files")
    if not (home() / "flows/train.py").exists():
        raise UserError(
            f"SHEPHERD_HOME={home()}: this folder has no flows/train.py; set it to a checkout of the repository"
        )
    with hold(servers.folder() / "lock"), hold(database_lock(), refusal=IN_USE):
        configure_environment()
        limit = _limit()  # raises errors before anything is started
        password = keep_password(servers.password_file())
        database = _database(kind, password)
        _check_ports((*PUBLIC, "postgres") if database else PUBLIC)
        _check_kept()
        if database:
            _start(database)
        if os.environ.get(DATABASE):
            postgres.make_databases(private=database is not None)
        prepare_store(_store())  # a server that is killed while it creates its tables leaves an unusable database
        _warn_of_untried_version()
        urls = {name: _url(name) for name in PUBLIC}
        variables = client_variables(urls["prefect"], urls["mlflow"], password)
        variables |= {DATABASE: os.environ[DATABASE]} if database else {}
        os.environ.update(variables)
        both = _prefect(), _mlflow()
        for server in both:
            _start(server)
        for server in both:
            servers.wait_until_ready(server)
            _print_state(server.name, "ready")
        write_dotenv(variables)
        _print_state("deployments", "being created")
        names = deploy()
        gpus = visible_gpus()
        for server in (_worker(limit), *(_worker(1, gpu) for gpu in gpus)):
            _start(server)
        print_safely(_page(urls, names, bool(gpus)))


def down() -> None:
    """End all processes that `up` has started, workers first, so that trainers can write their checkpoints."""
    with hold(servers.folder() / "lock"):
        trained = servers.list_trained()
        # On SIGTERM a worker kills its flows at once. After SIGKILL its flows end by themselves, with a checkpoint.
        servers.end(("worker",), signal.SIGKILL)
        servers.wait_until(lambda: not any("worker" in kind for _, kind in servers.find_marked()), servers.STOP_TIMEOUT)
        servers.end(("prefect", "mlflow"), signal.SIGTERM)
        names = [*NAMES, *NO_TRACKING, *([DATABASE] if "postgres" in servers.running() else [])]
        servers.end(("postgres",), signal.SIGINT)  # on SIGTERM it would wait for the connections of running sweeps
        servers.stop_leftovers()
        servers.remove_stopped()
        write_dotenv({})
        for run in trained:
            if not run.is_taken() and not is_over(run):
                command = continue_command(run.path, run.read_config().get("plugins"))
                print_safely(f"interrupted: `{command}` resumes it {resumes(run)}")
        print_safely("everything that `make up` started has ended; run this in every terminal that has loaded .env:")
        print_safely(f"  unset {' '.join(names)}")


def status() -> None:
    """Print the running servers and workers."""
    lines = [f"{name:<16} pid {pid}" for name, pid in servers.running().items()]
    print_safely("\n".join(lines) or "nothing is running; run `make up` to start servers and workers")


def deploy_elsewhere() -> None:
    """Create or update the work pools and deployments on the server of PREFECT_API_URL, and print their names."""
    configure_environment()
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError(
            "PREFECT_API_URL is not set; set it, or run `make up`, which starts a server here and deploys to it"
        )
    servers.check_servers()
    _warn_of_untried_version()
    print_safely("\n".join(deploy()))


def databases() -> None:
    """Create the databases of Prefect and MLflow in this project's state folder, unless they exist."""
    with prefect_api():
        prepare_store(tracking_uri())


def _warn_of_untried_version() -> None:
    if warning := describe_untried_version():
        print_safely(f"shepherd: warning: {warning}", file=sys.stderr)


def _database(kind: str, password: str) -> Server | None:
    """Select the database of the servers.

    If it is a PostgreSQL server, set SHEPHERD_DATABASE_URL to its URL.

    Args:
        kind: "postgres" for the private PostgreSQL server; "" for SQLite, or the server of SHEPHERD_DATABASE_URL.
        password: password of the private server.

    Returns:
        The private PostgreSQL server if it is used, otherwise None.
    """
    own = postgres.private_url(servers.port_of("postgres") or _port("postgres"), password)
    chosen = os.environ.get(DATABASE) or (own if kind else "")
    if server_host() != LOOPBACK and not chosen:
        raise UserError(
            f"SHEPHERD_HOST={server_host()}: servers for other machines need PostgreSQL, because with SQLite, clients "
            f"of MLflow write files directly to a folder of this machine; run `make up DB=postgres`, or set {DATABASE}"
        )
    if not chosen:
        return None
    postgres.check_driver()
    os.environ[DATABASE] = chosen
    _store()  # raises UserError if the address is invalid
    return postgres.private_server(_port("postgres"), password) if chosen == own else None


def _prefect() -> Server:
    port = _port("prefect")
    api = f"{_url('prefect')}/api"
    variables = {
        "PREFECT_API_URL": "",
        "PREFECT_UI_API_URL": "/api",  # relative to the address of the page, which may be that of a proxy
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": _url("prefect"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_API_AUTH_STRING": os.environ["PREFECT_API_AUTH_STRING"],
        # A restart of the server would lose leases in memory, and their slots would stay occupied forever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Prefect's server ends a flow run that is still Cancelling after this time, for example because its machine was
        # lost; the default is 300.
        "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS": "120",
        # Without these two, `prefect deployment run --watch` does not show the log of the flow.
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
    if os.environ.get(DATABASE):  # clients may be on other machines, so they upload files to the server
        files = ("--default-artifact-root", "mlflow-artifacts:/", "--artifacts-destination", artifact_root())
    else:  # the same folder as without a server, so that runs can be resumed when the server is down
        files = ("--default-artifact-root", artifact_root())
    variables = {
        "MLFLOW_BACKEND_STORE_URI": _store(),  # not in the command line, because it may contain a password
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # saves eight processes that this project does not use
        **cross_site_settings(port),
    }
    return Server("mlflow", (*command, *address, *files), variables, f"{_url('mlflow')}/health")


def _store() -> str:
    """Return the database URL of the MLflow server. Without PostgreSQL, commands without a server use the same file."""
    return database_url("mlflow", "psycopg2") or own_store()


def _check_kept() -> None:
    """Raise UserError if a server that is already running uses another database than the selected one."""
    wanted = {
        "prefect": ("PREFECT_API_DATABASE_CONNECTION_URL", database_url("prefect", "asyncpg")),
        "mlflow": ("MLFLOW_BACKEND_STORE_URI", database_url("mlflow", "psycopg2")),
    }
    for name, (key, database) in wanted.items():
        has = servers.variable_of(name, key)
        if has is not None and (has if has.startswith("postgresql") else None) != database:
            raise UserError(f"{name} is running on another database ({redact(has) or 'SQLite'}); run `make down` first")


def _url(name: str) -> str:
    return f"http://{server_host()}:{_port(name)}"


def _worker(limit: int, gpu: str = "") -> Server:
    """Return the definition of a Prefect worker of this machine.

    Args:
        limit: number of flow runs that the worker executes at the same time.
        gpu: index of the GPU that the worker uses, in work pool "gpu"; "" = a worker of pool "local", without a GPU.

    Returns:
        The worker as a background process.
    """
    name, pool = (f"worker-gpu-{gpu}", "gpu") if gpu else ("worker-local", "local")
    command = (sys.executable, "-m", "flows.workers.restart", "flows.workers.worker", "--pool", pool)
    options = (
        "--name",
        f"{name}-{os.uname().nodename}",
        "--limit",
        str(limit),
        *(() if gpu else ("--watch", f"{time.time():.0f}")),
    )
    # Flow runs send heartbeats, which flows.workers.worker checks.
    variables = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    # The worker runs in `home()`. The user's plugins and configs may be in the current folder.
    own = [str(folder) for folder in config_folders() if folder != BUILT_IN]
    variables |= {"PYTHONPATH": import_path(), "SHEPHERD_SEARCH_PATH": ";".join(own), "SHEEPRL_SEARCH_PATH": ""}
    return Server(name, (*command, *options), variables | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}))


def visible_gpus() -> list[str]:
    """Return the GPUs that torch can use, as values for CUDA_VISIBLE_DEVICES.

    They are determined in a child process, so that this process need not import torch. Without the program
    `nvidia-smi`, the list is empty.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    count, chosen = int(done.stdout.strip() or 0), os.environ.get("CUDA_VISIBLE_DEVICES")
    return chosen.split(",")[:count] if chosen else [str(gpu) for gpu in range(count)]


def _check_ports(names: tuple[str, ...] = PUBLIC) -> None:
    """Raise UserError if a server cannot listen on its port.

    Leftover processes of a killed server, which could occupy the port, are ended first.
    """
    if _port("prefect") == _port("mlflow"):
        raise UserError(f"SHEPHERD_MLFLOW_PORT={_port('mlflow')}: Prefect's server uses this port; choose another one")
    for name in names:
        key = PORTS[name][0]
        port, had = _port(name), servers.port_of(name)
        if had is None:
            servers.stop_leftovers(name)
            if why := servers.why_occupied(port):
                raise UserError(f"{key}={port}: {why}; set {key} to a free port, in the environment or in .env")
        elif had != port:
            raise UserError(f"{key}={port}: {name} is running on port {had}; run `make down` first, or set {key}={had}")


def _start(server: Server) -> None:
    _print_state(server.name, f"started; log {servers.log_of(server)}" if servers.start(server) else "already running")


def _port(name: str) -> int:
    return _number(*PORTS[name], "a port from 1 to 65535", 65535)


def _limit() -> int:
    """Return the number of flow runs that the worker of pool "local" executes at the same time."""
    return _number("SHEPHERD_LOCAL_LIMIT", max(2, os.cpu_count() or 1), "a number of runs from 1 to 1000", 1000)


def _number(key: str, default: int, what: str, highest: int) -> int:
    text = os.environ.get(key) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        raise UserError(f"{key}={text}: must be {what}")
    return int(text)


def _page(urls: dict[str, str], names: list[str], has_gpu: bool) -> str:
    waits = "" if has_gpu else "  (no GPU here: flow runs wait for a worker on a machine with a GPU, docs/scaling.md)"
    local, gpu = (_gather(names, ending) for ending in ("/default", "/gpu"))
    # The password must not appear in a log file.
    password = os.environ["MLFLOW_TRACKING_PASSWORD"] if sys.stdout.isatty() else "$MLFLOW_TRACKING_PASSWORD"
    where = shlex.quote(str(home() / ".env"))
    activate = Path(sys.executable).with_name("activate")
    first = f". {shlex.quote(str(activate))}; " if bin_folder() and activate.exists() else ""
    down_command = "make down" if Path.cwd() == home() else f"make -C {shlex.quote(str(home()))} down"
    return f"""
  Prefect         {urls["prefect"]}
  MLflow          {urls["mlflow"]}
  browser login   MLflow: user {USER}, password {password}; Prefect: {USER}:{password}
  deployments     {local}
  for GPUs        {gpu}{waits}

  for this terminal:   {first}set -a; . {where}; set +a
  then:                prefect deployment run {names[0]} --watch
  to stop everything:  {down_command}"""


def _gather(names: list[str], ending: str) -> str:
    """Abbreviate names of deployments with shell braces, such as "{train,sweep}-{a2c,ppo}/default".

    Args:
        names: names of deployments.
        ending: only names with this ending are included.

    Returns:
        The text.
    """
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


def _print_state(name: str, state: str) -> None:
    print_safely(f"  {name:<22} {state}", flush=True)


def main(arguments: list[str]) -> int:
    """Run a command of `flows.workers.up`; return the exit code: 0, 2 (user error) or 1 (failure)."""
    commands = {"up": up, "down": down, "status": status, "deploy": deploy_elsewhere, "databases": databases}

    def run() -> int:
        word, *more = arguments or [""]
        if word not in commands or len(more) > (word == "up"):
            raise UserError(
                f"flows.workers.up: the command must be one of {', '.join(commands)}; only the command `up` takes an "
                "argument, which must be `postgres`"
            )
        commands[word](*more)
        return 0

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
