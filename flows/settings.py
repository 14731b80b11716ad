"""Folders, addresses and environment variables of the project's databases, artifacts and servers.

Everything is stored in `<home>/.shepherd`, so a command does not depend on the working directory. Prefect and MLflow
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
OTHERS = 0o007  # permissions of users other than the owner and the group
DOTENV_PREFIXES = ("SHEPHERD_", "MLFLOW_", "PREFECT_")
DOTENV_NAMES = ("SHEEPRL_SEARCH_PATH", "DIAMBRA_ENVS")
DATABASE = "SHEPHERD_DATABASE_URL"
# The folder with the sockets of the fork server and the shared mirror. A process that drives many runs sets it for its
# child processes.
WARM = "SHEPHERD_WARM"
_derived: set[tuple[str, str]] = set()  # variables and values that this process has set itself


def home() -> Path:
    """Return the project's folder.

    It is SHEPHERD_HOME if that variable is set. Otherwise it is the checkout that contains this file, and without a
    checkout the working directory.
    """
    chosen = os.environ.get("SHEPHERD_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "conf").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout
    return Path.cwd()


def state_folder() -> Path:
    """Return `<home>/.shepherd`, the folder of databases, artifacts, caches and locks. Create it on first use.

    Git ignores the folder. Only its owner can enter it; if the home folder has the setgid bit, its group can, too.
    Earlier versions created the folder with access for everyone, so the permissions of an existing folder are
    corrected.
    """
    folder = home() / ".shepherd"
    try:
        if not folder.exists():
            make_private(folder)
            (folder / ".gitignore").write_text("*\n")
        elif (mode := folder.stat().st_mode) & OTHERS:
            with suppress(PermissionError):  # another user owns the folder
                folder.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except OSError as error:
        raise UserError(
            f"SHEPHERD_HOME={home()}: {folder} cannot be created ({error.strerror}); choose a writable folder"
        ) from None
    return folder


def warm_folder() -> Path | None:
    """Return the folder with the sockets of the shared fork server and mirror, which `flows.runs.warm` starts.

    Return None if this process does not use them.
    """
    folder = os.environ.get(WARM)
    return Path(folder) if folder else None


def tracking_uri() -> str:
    """Return the address of the MLflow store with runs and models.

    It is MLFLOW_TRACKING_URI if that variable is set, else the project's own SQLite file.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    return chosen if chosen and ("MLFLOW_TRACKING_URI", chosen) not in _derived else own_store()


def own_store() -> str:
    """Return the address of the project's own SQLite file for MLflow."""
    return f"sqlite:///{state_folder() / 'mlflow.db'}"


def server_host() -> str:
    """Return the host on which the servers of `make up` listen: SHEPHERD_HOST, else the loopback address."""
    return os.environ.get("SHEPHERD_HOST") or LOOPBACK


def allowed_hosts() -> list[str]:
    """Return the additional host names that the servers accept, for example the name of a proxy.

    SHEPHERD_ALLOWED_HOSTS lists them, separated by commas.
    """
    return [name.strip().lower() for name in os.environ.get("SHEPHERD_ALLOWED_HOSTS", "").split(",") if name.strip()]


def database_url(of: str, driver: str) -> str | None:
    """Return the address of a service's database on the PostgreSQL server of SHEPHERD_DATABASE_URL.

    Return None if that variable is not set.

    Args:
        of: the service that uses the database: "prefect", "mlflow" or "optuna". The database is NAME_<of> for the
            address .../NAME, and shepherd_<of> for an address without a name.
        driver: "psycopg2", "asyncpg", or "" for an address that PostgreSQL's own clients read.

    Returns:
        The address with its password; in SQLAlchemy's form if a driver is given.

    Raises:
        UserError: If SHEPHERD_DATABASE_URL is not the address of a PostgreSQL server.
    """
    parts = split_address(os.environ.get(DATABASE, ""), DATABASE)
    if not parts.geturl():
        return None
    if parts.scheme.partition("+")[0] not in ("postgres", "postgresql") or not parts.hostname:
        raise UserError(
            f"{DATABASE}={redact(parts.geturl())}: not the address of a PostgreSQL server; the form is "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME"
        )
    name, query = parts.path.strip("/") or "shepherd", parts.query
    if driver == "asyncpg":  # asyncpg calls the parameter `ssl`
        query = query.replace("sslmode=", "ssl=")
    scheme = f"postgresql+{driver}" if driver else "postgresql"
    return urlunsplit(parts._replace(scheme=scheme, path=f"/{name}_{of}", query=query))


def split_address(address: str, key: str) -> SplitResult:
    """Split an address into its parts. Raise a `UserError` about `key` if the address is malformed."""
    try:
        return urlsplit(address)
    except ValueError as error:
        raise UserError(f"{key}={address}: not an address ({error})") from None


def artifact_root() -> str:
    """Return the address at which MLflow stores files: those of the project's own store and of the server of `make up`.

    It is SHEPHERD_ARTIFACTS (a folder or an address such as s3://bucket/folder) if that variable is set, else a folder
    in `state_folder()`.
    """
    chosen = os.environ.get("SHEPHERD_ARTIFACTS") or str(state_folder() / "mlartifacts")
    return chosen if "://" in chosen else _from_home(chosen).as_uri()


def run_root() -> str:
    """Return the default of `log_root`, the folder of all runs: SHEPHERD_RUN_ROOT, else `runs`.

    SHEPHERD_RUN_ROOT is made absolute, because workers share it and each has its own working directory.
    """
    chosen = os.environ.get("SHEPHERD_RUN_ROOT")
    return str(_from_home(chosen)) if chosen else "runs"


def sweeps_folder() -> Path:
    """Return the folder of the plans and studies of sweeps: in SHEPHERD_RUN_ROOT if that is set, else the state folder.

    SHEPHERD_RUN_ROOT is shared, so a sweep's flow that is retried on another worker finds its sweep there.
    """
    shared = os.environ.get("SHEPHERD_RUN_ROOT")
    return _from_home(shared) / ".sweeps" if shared else state_folder() / "sweeps"


def _from_home(path: str) -> Path:
    return home() / Path(path).expanduser()


def database_lock() -> Path:
    """Return the lock file of the local databases.

    A process that opens them without a server holds a shared lock, and so does `make up` while it starts servers.
    """
    return state_folder() / "databases.lock"


def configure_environment() -> None:
    """Set the environment variables that Prefect and MLflow read when they are imported, unless they are set already.

    If SHEPHERD_HOME has changed since an earlier call, as in a notebook, the values of that call are replaced.

    `.env` is read first. Without a server, Prefect's recorder would write one task run at a time and drop the rest of
    its queue when the process ends. Writing in batches is fast enough that no history is lost. The interval between
    batches must be a whole number of seconds: Prefect 3.8 truncates the fraction, and at 0 the recorder uses a whole
    core.
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
        # Prefect's own temporary server has no password; flows.workers.local_api starts one with a password.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "MLFLOW_TRACKING_URI": tracking_uri(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_MODEL_CATALOG_URI": "",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "DO_NOT_TRACK": "1",
        "MPLCONFIGDIR": str(folder / "matplotlib"),  # matplotlib's font cache
        # Otherwise GitPython prints an import error on machines without git.
        "GIT_PYTHON_REFRESH": "quiet",
    }
    if tracking_uri().startswith("sqlite:"):
        # Without this, MLflow creates `./mlruns` in the working directory for the files of a local store.
        settings["_MLFLOW_SERVER_ARTIFACT_ROOT"] = files = artifact_root()
        if files.startswith("file:"):
            with suppress(OSError):  # MLflow reports the error if a command stores a file
                make_private(Path(unquote(urlsplit(files).path)))
    for name, value in settings.items():
        if name not in os.environ or (name, os.environ[name]) in _derived:
            os.environ[name] = value
            _derived.add((name, value))


def read_dotenv() -> None:
    """Set the project's variables from `.env` in the working directory or the home, unless they are set already."""
    from dotenv import dotenv_values

    for folder in dict.fromkeys((Path.cwd(), home())):
        for name, value in dotenv_values(folder / ".env").items():
            if value is not None and (name.startswith(DOTENV_PREFIXES) or name in DOTENV_NAMES):
                os.environ.setdefault(name, value)


def _make_paths_absolute() -> None:
    """Make the paths in environment variables absolute, because an RL environment may change the working directory."""
    for name in ("SHEPHERD_HOME", "SHEPHERD_CACHE", "MINARI_DATASETS_PATH"):
        if path := os.environ.get(name):
            os.environ[name] = str(Path(path).expanduser().absolute())
    address, scheme = os.environ.get("MLFLOW_TRACKING_URI", ""), "sqlite:///"
    if address.startswith(scheme):
        os.environ["MLFLOW_TRACKING_URI"] = scheme + os.path.abspath(address.removeprefix(scheme))


def _set_credentials_apart() -> None:
    """Move user and password from server addresses to separate variables.

    MLflow and Prefect log the addresses and display them.
    """
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
