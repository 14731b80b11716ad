"""Storage of a study: Optuna's database, to drive a sweep or only to read what it has come to."""

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
    """Optuna's storage at an address, made where it is not there; a `UserError` where it cannot be opened."""
    from optuna.storages import RDBStorage

    try:
        return RDBStorage(url, engine_kwargs=_options(url))
    except Exception as error:  # SQLAlchemy's, or whatever the database's driver raises
        raise UserError(f"sweep.storage={url}: cannot be opened ({_reason(error)})") from None


def open_to_read(url: str) -> BaseStorage | None:
    """Optuna's storage at an address, to which nothing is written; None where there is none.

    A `UserError` where there is one that cannot be read.
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
    """Around the use of a database: what it raises becomes one sentence, which names what goes on.

    Args:
        doing: what cannot be done, as "trial 3 cannot be noted".
        go_on: the command that does it again.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; once that is mended, go on with: {go_on}") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        raise RunError(f"{doing} ({_reason(error)}); once that is mended, go on with: {go_on}") from error


def _options(url: str) -> dict[str, object]:
    # A file is locked for moments by who only reads it (`shepherd sweep status`, a dashboard).
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {"pool_pre_ping": True}


def _reason(error: Exception) -> str:
    """The words of the database's driver; Optuna and SQLAlchemy put long texts around it."""
    said = error.__cause__ or error
    return first_line(getattr(said, "orig", None) or said) or type(error).__name__
