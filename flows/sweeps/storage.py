"""Database that contains the Optuna study of a sweep, opened for writing or read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from rlcore.errors import RunError, UserError, first_line

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def open_storage(url: str) -> BaseStorage:
    """Open Optuna's storage at a URL, creating it if needed; raise UserError if it cannot be opened."""
    from optuna.storages import RDBStorage

    try:
        return RDBStorage(url, engine_kwargs=_options(url))
    except Exception as error:  # of SQLAlchemy or any database driver
        raise UserError(f"sweep.storage={url}: cannot be opened ({_reason(error)})") from None


def open_to_read(url: str) -> BaseStorage | None:
    """Open Optuna's storage at a URL without writing to it; return None if it does not exist.

    Raises UserError if it exists but cannot be read.
    """
    import sqlalchemy
    from optuna.storages import RDBStorage

    try:
        address = sqlalchemy.make_url(url)
        if address.get_backend_name() == "sqlite" and address.database:
            if not Path(address.database).exists():
                return None
            url = f"sqlite:///file:{quote(str(Path(address.database).absolute()))}?mode=ro&uri=true"
        engine = sqlalchemy.create_engine(url, **_options(url))
        try:
            if not sqlalchemy.inspect(engine).has_table("studies"):
                return None
        finally:
            engine.dispose()
        return RDBStorage(url, engine_kwargs=_options(url), skip_table_creation=True)
    except Exception as error:
        raise UserError(f"sweep.storage={url}: cannot be read ({_reason(error)})") from None


@contextmanager
def storage_errors(doing: str, go_on: str) -> Iterator[None]:
    """Context manager that converts errors of Optuna's database to a RunError with a one-sentence message.

    The message ends with the command that resumes the sweep. A UserError is raised again with this ending.

    Args:
        doing: what failed, such as "trial 3 cannot be stored".
        go_on: command that resumes the sweep.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; after fixing this, resume with: {go_on}") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        raise RunError(f"{doing} ({_reason(error)}); after fixing this, resume with: {go_on}") from error


def _options(url: str) -> dict[str, object]:
    # Readers (`shepherd sweep status`, a dashboard) lock a SQLite file for short times.
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {"pool_pre_ping": True}


def _reason(error: Exception) -> str:
    """Return the message of the database driver without the long texts that Optuna and SQLAlchemy add."""
    cause = error.__cause__ or error
    return first_line(getattr(cause, "orig", None) or cause) or type(error).__name__
