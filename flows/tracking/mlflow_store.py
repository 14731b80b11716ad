"""The MLflow store of a run: where it is, made complete, opened."""

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

PATIENCE = 120.0  # seconds for which a locked database is waited for
DATABASES = ("postgresql", "mysql", "mssql")
# Of MLflow's own stores.
SCHEMES = ("", "file", "sqlite", "http", "https", "databricks", "databricks-uc", "uc", *DATABASES)
LOCKED = "{file}: another process has locked MLflow's database; end it, and try again"


def store_uri(tree: Mapping[str, Any]) -> str:
    """The MLflow store of a run: metric.logger.tracking_uri, else the project's."""
    return tree["metric"]["logger"]["tracking_uri"] or tracking_uri()


@contextmanager
def locks_in_a_sentence(uri: str, behind: str) -> Iterator[None]:
    """Turn the error of a store that is locked inside the `with` into a `MachineFault`; `behind` ends its sentence."""
    try:
        yield
    except Exception as error:
        if is_locked(error):
            raise MachineFault(f"{LOCKED.format(file=file_of(uri))}; {behind}") from error
        raise


def file_of(uri: str) -> Path | None:
    """The file of an SQLite store; None for another store."""
    return Path(unquote(uri.removeprefix("sqlite:///").split("?")[0])) if uri.startswith("sqlite:///") else None


def connect(uri: str) -> MlflowClient:
    """A client of an MLflow store, which must have been prepared; waits for a file that another process has locked.

    A `MachineFault` says that it is locked for too long: MLflow itself would end in raw SQL, after seconds.
    """
    file = file_of(uri)
    if file is not None and (error := wait_for_database(file, PATIENCE)):
        raise MachineFault(LOCKED.format(file=file)) from error
    with large_imports("mlflow"):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def reachable_store(uri: str) -> MlflowClient:
    """A client of a store, made if it is a file; of a server that is away a `UserError` says so.

    MLflow itself would wait for minutes, and end in a traceback.
    """
    # What a server refuses, MLflow says itself.
    if is_server(uri) and (reason := unreachable(f"{uri.rstrip('/')}/health", any_answer=True)):
        raise UserError(
            f"MLFLOW_TRACKING_URI={uri}: no MLflow server answers there ({reason}); start it with `make up`, "
            "or unset the variable to use the project's own file"
        )
    prepare_store(uri)
    return connect(uri)


def pages(search: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[Any]:
    """Every page of what one of the client's searches finds."""
    token = None
    while token != "":
        page = search(*arguments, **named, page_token=token)
        yield page
        token = page.token or ""


def prepare_store(uri: str) -> None:
    """Make an SQLite store, if that is what the address names, complete before anyone sees it.

    MLflow takes seconds to create its tables; a second process, or a kill half-way, would meet a store that neither
    works nor can be upgraded. It is therefore built beside its name and renamed.
    """
    path = file_of(uri)
    if path is None:
        check_address(uri, "MLFLOW_TRACKING_URI")
        return
    try:
        if path.is_file():
            return
        if path.exists():
            raise UserError(f"{_place(uri)}: {path} is not a file; name the SQLite file in it, as {path}/mlflow.db")
        with hold(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                building = path.with_name(f"{path.name}.building")
                building.unlink(missing_ok=True)  # left by a killed process; nobody else is here
                connect(f"sqlite:///{building}").search_experiments(max_results=1)
                building.chmod(0o600)  # a server will have it open
                os.replace(building, path)
    except OSError as error:
        if error.errno in DISK_FAULTS:
            raise
        raise UserError(f"{_place(uri)}: {path} cannot be made ({error.strerror}); name a file that can") from error


def _place(uri: str) -> str:
    return f"MLFLOW_TRACKING_URI={redact(uri)}"


def check_address(uri: str, key: str) -> None:
    """Raise a UserError if MLflow has no store for an address, or the driver of its database is not installed.

    Args:
        uri: the address.
        key: what it is a value of, for the message.
    """
    scheme = split_address(uri, key).scheme.partition("+")[0]
    if scheme not in (*SCHEMES, *(point.name for point in entry_points(group="mlflow.tracking_store"))):
        raise UserError(
            f"{key}={redact(uri)}: MLflow has no store for addresses that begin with {scheme}:; use a path, or an "
            f"address with {', '.join(filter(None, SCHEMES))}"
        )
    if scheme not in DATABASES:
        return
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        raise UserError(
            f"{key}={redact(uri)}: {error.name} is not installed, which connects to this database"
        ) from None
    except ArgumentError as error:
        raise UserError(f"{key}={redact(uri)}: not the address of a database ({first_line(error)})") from None


def user() -> str:
    """User who runs this process, by name where there is one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have none
        return f"user {os.getuid()}"
