"""Folders, addresses and environment variables of the project's databases, artifacts and servers.

By default, databases and artifacts are stored in `<home>/.shepherd`, so a command does not depend on the working
directory. `configure_environment` must be called before Prefect and MLflow are imported, because they read environment
variables on import.
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
DOTENV_PREFIXES = ("SHEPHERD_", "MLFLOW_", "PREFECT_", "WANDB_")
DOTENV_NAMES = ("SHEEPRL_SEARCH_PATH", "DIAMBRA_ENVS")
DATABASE = "SHEPHERD_DATABASE_URL"
# The folder with the sockets of the fork server and of the process that copies event logs to MLflow. A process that
# drives many runs sets it for its child processes.
WARM = "SHEPHERD_WARM"
_derived: set[tuple[str, str]] = set()  # variables and values that this process has set itself


def home() -> Path:
    """Return the project's home folder, in which the folder `.shepherd` is.

    It is the value of the environment variable SHEPHERD_HOME, if it is set. Otherwise it is the Git checkout that
    contains this file. If this file is not in a checkout, it is the working directory.
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

    Git ignores the folder. Only the owner of the folder can enter it; if the home folder has the setgid bit, its group
    can enter it, too. Earlier versions of this project created the folder with access for everyone, so the permissions
    of an existing folder are corrected. Raises UserError if the folder cannot be created.
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
    """Return the folder with the sockets of two helper processes that several runs share; None if there are none.

    The first one forks trainers from a process with imported libraries. The second one copies event logs to MLflow.
    `flows.runs.warm` starts both.
    """
    folder = os.environ.get(WARM)
    return Path(folder) if folder else None


def tracking_uri() -> str:
    """Return the address (tracking URI) of MLflow's database or server, which has the data of runs and models.

    It is the environment variable MLFLOW_TRACKING_URI if the user has set it, else an SQLite file in the state folder.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    return chosen if chosen and ("MLFLOW_TRACKING_URI", chosen) not in _derived else own_store()


def own_store() -> str:
    """Return the address of the SQLite file in the state folder that MLflow uses by default."""
    return f"sqlite:///{state_folder() / 'mlflow.db'}"


def server_host() -> str:
    """Return the address on which the servers of `make up` listen.

    It is the environment variable SHEPHERD_HOST if it is set, else the loopback address.
    """
    return os.environ.get("SHEPHERD_HOST") or LOOPBACK


def allowed_hosts() -> list[str]:
    """Return the additional host names under which the servers of `make up` accept requests, such as that of a proxy.

    The environment variable SHEPHERD_ALLOWED_HOSTS lists them, separated by commas.
    """
    return [name.strip().lower() for name in os.environ.get("SHEPHERD_ALLOWED_HOSTS", "").split(",") if name.strip()]


def database_url(of: str, driver: str) -> str | None:
    """Return the address of the PostgreSQL database of a service.

    The environment variable SHEPHERD_DATABASE_URL has the address of the PostgreSQL server. If the variable ends with a
    name (`postgresql://…/NAME`), the database of the service is called NAME_<of>, otherwise shepherd_<of>.

    Args:
        of: the service that uses the database: "prefect", "mlflow" or "optuna".
        driver: "psycopg2" or "asyncpg" for an address in SQLAlchemy's form, or "" for an address that PostgreSQL's
            clients read.

    Returns:
        The address, including the password; None if SHEPHERD_DATABASE_URL is not set.

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
    """Split a URL into its parts; raise a `UserError` if it is malformed.

    `key` is the environment variable or config key that contains the URL, for the message.
    """
    try:
        return urlsplit(address)
    except ValueError as error:
        raise UserError(f"{key}={address}: not an address ({error}); correct it or leave {key} unset") from None


def artifact_root() -> str:
    """Return the URL of the folder in which MLflow stores artifacts (files of runs and models).

    The environment variable SHEPHERD_ARTIFACTS sets it to a folder or an address such as s3://bucket/folder; the
    default is a folder in `state_folder()`. It applies to the default SQLite store and to the server of `make up`, but
    not to other MLflow servers.
    """
    chosen = os.environ.get("SHEPHERD_ARTIFACTS") or str(state_folder() / "mlartifacts")
    return chosen if "://" in chosen else _from_home(chosen).as_uri()


def run_root() -> str:
    """Return the default of the config key `log_root`, which is the folder of all runs.

    It is the environment variable SHEPHERD_RUN_ROOT if it is set, else `runs`. SHEPHERD_RUN_ROOT is made absolute,
    because workers share this folder and have different working directories.
    """
    chosen = os.environ.get("SHEPHERD_RUN_ROOT")
    return str(_from_home(chosen)) if chosen else "runs"


def sweeps_folder() -> Path:
    """Return the folder in which sweeps store their plans and Optuna studies.

    If the environment variable SHEPHERD_RUN_ROOT is set, the folder is inside that folder, which all workers share. A
    worker on another machine can then continue a sweep. Otherwise the folder is inside the state folder.
    """
    shared = os.environ.get("SHEPHERD_RUN_ROOT")
    return _from_home(shared) / ".sweeps" if shared else state_folder() / "sweeps"


def _from_home(path: str) -> Path:
    return home() / Path(path).expanduser()


def database_lock() -> Path:
    """Return the path of the lock file for the SQLite databases in the state folder.

    A process that opens the databases without a server holds a shared lock on the file. `make up` needs an exclusive
    lock while it starts the servers, so it is refused if such a process is running.
    """
    return state_folder() / "databases.lock"


def configure_environment() -> None:
    """Set the environment variables that Prefect and MLflow read when they are imported.

    The file `.env` is read first. Variables that the user has set keep their values. Variables that an earlier call has
    set are set again, because SHEPHERD_HOME may have changed in the meantime, for example in a notebook.

    Prefect's task-run recorder is set to write in batches. By default, it would write one task run at a time, and drop
    those that are still waiting when the process ends. The interval between batches must be an integer number of
    seconds: Prefect 3.8 truncates fractions, and with an interval of 0 the recorder uses a complete CPU core.
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
        "WANDB_ERROR_REPORTING": "false",
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
    """Set environment variables of this project from the file `.env`; variables that are already set are not changed.

    The file is read from the working directory and from the project's home folder. If both files set a variable, the
    value from the working directory is used.
    """
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
    """Move user and password from the addresses of the MLflow and Prefect servers to separate environment variables.

    MLflow and Prefect log and display the addresses, which therefore must not contain passwords.
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
