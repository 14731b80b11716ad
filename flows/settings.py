"""Places where the project keeps what outlives a run (databases, artifacts), and the environment its servers read.

Everything lies under `<home>/.shepherd`, so that no command depends on the folder it was typed in. Prefect and MLflow
read their settings when they are imported: call `configure_environment` before that.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from rlcore.errors import UserError
from rlcore.system.durable import make_private
from rlcore.system.secrets import redact

LOOPBACK = "127.0.0.1"
OTHERS = 0o007  # what a mode lets users do who are neither the owner nor in the group
DOTENV_PREFIXES = ("SHEPHERD_", "MLFLOW_", "PREFECT_")
DOTENV_NAMES = ("SHEEPRL_SEARCH_PATH", "DIAMBRA_ENVS")
DATABASE = "SHEPHERD_DATABASE_URL"
WARM = "SHEPHERD_WARM"  # names, for the children of a driver of many runs, the folder of its servers' sockets


def home() -> Path:
    """The project's folder: SHEPHERD_HOME, else the checkout this file lies in, else the working directory."""
    chosen = os.environ.get("SHEPHERD_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "conf").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout
    return Path.cwd()


def state_folder() -> Path:
    """`<home>/.shepherd`: databases, artifacts, caches and locks; made on first use and kept out of git.

    Only its owner can enter, and its group if the home has the setgid bit. Earlier versions let everybody in.
    """
    folder = home() / ".shepherd"
    try:
        if not folder.exists():
            make_private(folder)
            (folder / ".gitignore").write_text("*\n")
        elif (mode := folder.stat().st_mode) & OTHERS:
            with suppress(PermissionError):  # it belongs to somebody else, who decides
                folder.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except OSError as error:
        raise UserError(
            f"SHEPHERD_HOME={home()}: {folder} cannot be made ({error.strerror}); name a folder that can be written"
        ) from None
    return folder


def warm_folder() -> Path | None:
    """Folder with the sockets of the processes that serve all runs of a driver (flows.runs.warm); None without one."""
    folder = os.environ.get(WARM)
    return Path(folder) if folder else None


def tracking_uri() -> str:
    """Address at which MLflow keeps runs and models: MLFLOW_TRACKING_URI, else the project's own SQLite file."""
    return os.environ.get("MLFLOW_TRACKING_URI") or own_store()


def own_store() -> str:
    """The address of the project's own SQLite file for MLflow."""
    return f"sqlite:///{state_folder() / 'mlflow.db'}"


def server_host() -> str:
    """The address under which `make up`'s servers listen and are found: SHEPHERD_HOST, else this machine alone's."""
    return os.environ.get("SHEPHERD_HOST") or LOOPBACK


def allowed_hosts() -> list[str]:
    """Further host names under which servers of ours answer, as that of a proxy: SHEPHERD_ALLOWED_HOSTS, by commas."""
    return [name.strip().lower() for name in os.environ.get("SHEPHERD_ALLOWED_HOSTS", "").split(",") if name.strip()]


def database_url(of: str, driver: str) -> str | None:
    """The address of a database on the PostgreSQL server that SHEPHERD_DATABASE_URL names; None where it names none.

    Args:
        of: whose: "prefect", "mlflow" or "optuna". Of .../NAME it is NAME_<of>; of an address without a name,
            shepherd_<of>.
        driver: "psycopg2", "asyncpg", or "" for an address that PostgreSQL's own clients read.

    Returns:
        The address with its password, for SQLAlchemy where a driver is given.

    Raises:
        UserError: SHEPHERD_DATABASE_URL is the address of something else.
    """
    parts = split_address(os.environ.get(DATABASE, ""), DATABASE)
    if not parts.geturl():
        return None
    if parts.scheme.partition("+")[0] not in ("postgres", "postgresql") or not parts.hostname:
        raise UserError(
            f"{DATABASE}={redact(parts.geturl())}: not the address of a PostgreSQL server; write it as "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME"
        )
    name, query = parts.path.strip("/") or "shepherd", parts.query
    if driver == "asyncpg":  # which has another name for it
        query = query.replace("sslmode=", "ssl=")
    scheme = f"postgresql+{driver}" if driver else "postgresql"
    return urlunsplit(parts._replace(scheme=scheme, path=f"/{name}_{of}", query=query))


def split_address(address: str, key: str) -> SplitResult:
    """Split an address into its parts. Raises a UserError that names `key` if it is malformed."""
    try:
        return urlsplit(address)
    except ValueError as error:
        raise UserError(f"{key}={address}: not an address ({error})") from None


def artifact_root() -> str:
    """The address under which the project's own MLflow store, or the server of `make up`, keeps files.

    SHEPHERD_ARTIFACTS, a folder or an address as s3://bucket/folder; else a folder here.
    """
    chosen = os.environ.get("SHEPHERD_ARTIFACTS") or str(state_folder() / "mlartifacts")
    return chosen if "://" in chosen else _from_home(chosen).as_uri()


def run_root() -> str:
    """The folder of all runs where `log_root` says nothing: SHEPHERD_RUN_ROOT, else `runs` in the working directory.

    It is absolute when workers share it: each has a working directory of its own.
    """
    chosen = os.environ.get("SHEPHERD_RUN_ROOT")
    return str(_from_home(chosen)) if chosen else "runs"


def sweeps_folder() -> Path:
    """Folder of sweeps' plans and studies: beside the runs where SHEPHERD_RUN_ROOT shares those, else the state folder.

    A sweep's flow that is retried on another worker finds its sweep there.
    """
    shared = os.environ.get("SHEPHERD_RUN_ROOT")
    return _from_home(shared) / ".sweeps" if shared else state_folder() / "sweeps"


def _from_home(path: str) -> Path:
    return home() / Path(path).expanduser()


def database_lock() -> Path:
    """Held, shared, by whoever opens the databases here without a server, and by `make up` while it starts servers."""
    return state_folder() / "databases.lock"


def configure_environment() -> None:
    """Set what Prefect and MLflow read at import, each only where the user has not set it; reads `.env` first.

    Without a server, Prefect's own recorder writes one task run at a time and drops the rest of its queue when the
    process ends; in batches it keeps up, and no history is lost. Its interval must be a whole second: Prefect 3.8 cuts
    off the fraction, and at 0 the recorder spins on a whole core.
    """
    read_dotenv()
    _make_paths_absolute()
    _set_credentials_apart()
    folder = state_folder()
    settings = {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # Prefect's own temporary server has no password; flows.workers.local_api has another.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "MLFLOW_TRACKING_URI": tracking_uri(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "DO_NOT_TRACK": "1",
        "MPLCONFIGDIR": str(folder / "matplotlib"),  # its list of fonts
        # A stray GIT_PYTHON import error would otherwise be printed on machines without git.
        "GIT_PYTHON_REFRESH": "quiet",
    }
    if tracking_uri().startswith("sqlite:"):
        # MLflow makes `./mlruns` in the working directory when a local store names no folder for its files.
        settings["_MLFLOW_SERVER_ARTIFACT_ROOT"] = files = artifact_root()
        if files.startswith("file:"):
            with suppress(OSError):  # MLflow says what is wrong with it, to commands that store a file
                make_private(Path(unquote(urlsplit(files).path)))
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def read_dotenv() -> None:
    """Set what `.env`, in the working directory or the home, says of us and the user has not set."""
    from dotenv import dotenv_values

    for folder in dict.fromkeys((Path.cwd(), home())):
        for name, value in dotenv_values(folder / ".env").items():
            if value is not None and (name.startswith(DOTENV_PREFIXES) or name in DOTENV_NAMES):
                os.environ.setdefault(name, value)


def _make_paths_absolute() -> None:
    """Make relative paths in the environment absolute: an environment may change the working directory later."""
    for name in ("SHEPHERD_HOME", "SHEPHERD_CACHE", "MINARI_DATASETS_PATH"):
        if path := os.environ.get(name):
            os.environ[name] = str(Path(path).expanduser().absolute())
    address, scheme = os.environ.get("MLFLOW_TRACKING_URI", ""), "sqlite:///"
    if address.startswith(scheme):
        os.environ["MLFLOW_TRACKING_URI"] = scheme + os.path.abspath(address.removeprefix(scheme))


def _set_credentials_apart() -> None:
    """Take user and password out of server addresses: MLflow and Prefect quote an address in errors and logs."""
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        parts = split_address(os.environ.get(name, ""), name)
        if not parts.scheme.startswith("http") or parts.username is None or parts.password is None:
            continue
        user, password = unquote(parts.username), unquote(parts.password)
        os.environ[name] = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if name.startswith("MLFLOW"):
            os.environ.setdefault("MLFLOW_TRACKING_USERNAME", user)
            os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", password)
        else:
            os.environ.setdefault("PREFECT_API_AUTH_STRING", f"{user}:{password}")
