"""MLflow stores (SQLite file, database or server): address, creation and clients."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from flows.process.locks import hold, is_locked, wait_for_database
from flows.process.network import is_server, unreachable
from flows.settings import split_address, tracking_uri
from rlcore.errors import DISK_FAULTS, MachineFault, UserError, first_line
from rlcore.system.imports import large_imports
from rlcore.system.secrets import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

PATIENCE = 120.0  # seconds to wait for a locked database
DATABASES = ("postgresql", "mysql", "mssql")
# URI schemes of MLflow's own stores.
SCHEMES = ("", "file", "sqlite", "http", "https", "databricks", "databricks-uc", "uc", *DATABASES)
LOCKED = "{file}: another process has locked MLflow's database; end that process and retry"


def store_uri(tree: Mapping[str, Any]) -> str:
    """Return the URI of MLflow's database or server that a run's config selects.

    This is `metric.logger.tracking_uri`, or, if it is not set, the URI that is used for all runs (`tracking_uri`).
    """
    return tree["metric"]["logger"]["tracking_uri"] or tracking_uri()


@contextmanager
def locks_in_a_sentence(uri: str, behind: str) -> Iterator[None]:
    """Context manager that raises a `MachineFault` if another process has locked MLflow's SQLite file.

    Args:
        uri: URI of MLflow's database or server.
        behind: end of the error message.

    Yields:
        Nothing.
    """
    try:
        yield
    except Exception as error:
        if is_locked(error):
            raise MachineFault(f"{LOCKED.format(file=file_of(uri))}; {behind}") from error
        raise


def file_of(uri: str) -> Path | None:
    """Return the path in the URI of an SQLite store; None for other URIs."""
    return Path(unquote(uri.removeprefix("sqlite:///").split("?")[0])) if uri.startswith("sqlite:///") else None


def connect(uri: str) -> MlflowClient:
    """Return a client of an existing MLflow store (SQLite file, database or server).

    If a locked SQLite file is the store, wait for the lock. Raises a `MachineFault` if the file is still locked after
    120 s. Without the wait, MLflow would end after a few seconds with an SQL error.
    """
    file = file_of(uri)
    if file is not None and (error := wait_for_database(file, PATIENCE)):
        raise MachineFault(LOCKED.format(file=file)) from error
    with large_imports("mlflow"):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def reachable_store(uri: str) -> MlflowClient:
    """Return a client of an MLflow store (SQLite file, database or server). A missing SQLite file is created.

    Raises a `UserError` if the store is a server that does not answer. Without this check, MLflow would wait for
    minutes and end with a traceback.
    """
    # MLflow reports errors that the server returns.
    if is_server(uri) and (reason := unreachable(f"{uri.rstrip('/')}/health", any_answer=True)):
        raise UserError(
            f"MLFLOW_TRACKING_URI={uri}: no MLflow server answers there ({reason}); start it with `make up`, "
            "or unset the variable to use the project's own file"
        )
    prepare_store(uri)
    return connect(uri)


def pages(search: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[Any]:
    """Yield all pages of results of a search in MLflow.

    Args:
        search: search method of `MlflowClient`, such as `search_runs`.
        *arguments: its positional arguments.
        **named: its keyword arguments.

    Yields:
        Lists of results.
    """
    token = None
    while token != "":
        page = search(*arguments, **named, page_token=token)
        yield page
        token = page.token or ""


def prepare_store(uri: str) -> None:
    """Create MLflow's database if its URI names an SQLite file that does not exist; otherwise check the URI.

    MLflow takes seconds to create its tables. If another process opened the incomplete file, or a kill left it behind,
    MLflow could neither use nor upgrade it. Therefore the file is created under a temporary name and then renamed.
    """
    path = file_of(uri)
    if path is None:
        check_address(uri, "MLFLOW_TRACKING_URI")
        return
    try:
        if path.is_file():
            return
        if path.exists():
            raise UserError(
                f"{_place(uri)}: {path} is a folder, not a file; give an SQLite file, such as {path}/mlflow.db"
            )
        with hold(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                building = path.with_name(f"{path.name}.building")
                building.unlink(missing_ok=True)  # left by a killed process; the lock excludes others
                connect(f"sqlite:///{building}").search_experiments(max_results=1)
                building.chmod(0o600)  # readable by the owner only
                os.replace(building, path)
    except OSError as error:
        if error.errno in DISK_FAULTS:
            raise
        raise UserError(f"{_place(uri)}: {path} cannot be created ({error.strerror}); choose another file") from error


def _place(uri: str) -> str:
    return f"MLFLOW_TRACKING_URI={redact(uri)}"


def check_address(uri: str, key: str) -> None:
    """Raise a `UserError` if MLflow does not support the URI of a store, or its database driver is not installed.

    Args:
        uri: URI of the store.
        key: name of the setting that contains the URI, for the error message.
    """
    scheme = split_address(uri, key).scheme.partition("+")[0]
    if scheme not in (*SCHEMES, *(point.name for point in entry_points(group="mlflow.tracking_store"))):
        raise UserError(
            f"{key}={redact(uri)}: MLflow has no store for addresses that begin with {scheme}:; use a path, or one of "
            f"the schemes {', '.join(filter(None, SCHEMES))}"
        )
    if scheme not in DATABASES:
        return
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        raise UserError(
            f"{key}={redact(uri)}: this database needs the Python package {error.name}, which is not installed; "
            "install it"
        ) from None
    except ArgumentError as error:
        raise UserError(f"{key}={redact(uri)}: not the address of a database ({first_line(error)})") from None


def user() -> str:
    """Return the name of the user who runs this process, or the user id if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return f"user {os.getuid()}"
