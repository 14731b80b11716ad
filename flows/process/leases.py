"""Leases on what one process alone may do among all machines: a place with Prefect's server, beside the lock file.

A lock file keeps a second process of this machine out, and those of others where the storage honours `flock`. Where
PREFECT_API_URL names a server, who has the file also holds a global concurrency limit there, of one place, by a lease
that it renews: a machine that vanished has lost it a minute later. Whoever gets the file after a kill on the same
machine knows that the holder is gone, and gives the lease, which is noted beside the file, back at once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx

from flows.process.network import is_outage
from flows.process.signals import time_left
from rlcore.errors import UserError
from rlcore.store.directory import write_json

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

LEASE = 60.0  # seconds; the server takes none that is shorter
RENEW_EVERY = 15.0  # seconds
PATIENCE = 90.0  # seconds in which the server notices that a lease has run out; it looks every 15
ASK_EVERY = 1.0  # seconds
PARTING = 10.0  # seconds for giving it back
log = logging.getLogger(__name__)


@contextmanager
def hold_lease(name: str, note: Path, refusal: str = "") -> Iterator[None]:
    """Hold the one place of this name among all machines inside the `with`; nothing where no server is configured.

    While the server is away the lock file alone must do: a training neither stops nor waits for it.

    Args:
        name: letters, digits and dashes.
        note: has the lease; in the folder of the lock file, which the caller holds.
        refusal: a UserError says it where another machine keeps the place; without it one waits for a place that
            stays, as that of the registry, while one with a refusal is of a run, say, and is gone with it.
    """
    if not os.environ.get("PREFECT_API_URL"):
        yield
        return
    lease = _Lease(name, note)
    try:
        lease.take(refusal)
    except httpx.HTTPError as error:
        if not is_outage(error):
            raise
        log.warning("%s: Prefect's server is away (%s); the lock file alone keeps others out", name, error)
        yield
        return
    over = threading.Event()
    # Prefect keeps in the context which server it talks to.
    keeper = threading.Thread(target=copy_context().run, args=(lease.keep, over, bool(refusal)), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(time_left(PARTING))  # a server that is away takes a minute to be given up; the lease then runs out


def is_held_elsewhere(note: Path) -> bool:
    """Tell whether a lease was noted last on another machine, whose lock is not seen here, and was not given back."""
    return _read_note(note).get("host", socket.gethostname()) != socket.gethostname()


class _Lease:
    def __init__(self, name: str, note: Path) -> None:
        self._name, self._note = f"shepherd-{name}", note
        self._id: UUID | None = None

    def take(self, refusal: str) -> None:
        """Have the place, after its last holder at the latest; `UserError` where that lives on, and with a refusal."""
        deadline = time.monotonic() + PATIENCE
        with _client() as client:
            self._free_dead(client)
            told = bool(refusal)
            while not self._take(client):
                if refusal and time.monotonic() > deadline:
                    raise UserError(f"{self._holder()} {refusal}")
                if not told:
                    log.warning("%s: %s has it; waiting for it", self._name, self._holder())
                    told = True
                time.sleep(ASK_EVERY)

    def keep(self, over: threading.Event, passing: bool) -> None:
        """Renew it until it is over, then give it back. One that ran out, with the server away, is asked for again."""
        while not over.wait(RENEW_EVERY):
            try:
                with _client() as client:
                    if self._id is not None:
                        client.renew_concurrency_lease(self._id, LEASE)
                    else:
                        self._take(client)
            except httpx.HTTPStatusError:
                self._id = None
                log.warning("%s: its lease has run out while Prefect's server was away", self._name)
            except Exception as error:  # whatever it is, the training goes on, and in a moment the server may answer
                log.debug("%s: not renewed: %s", self._name, error)
        self._give_back(passing)

    def _give_back(self, passing: bool) -> None:
        """Let others have it; of a `passing` name the limit goes while its place is still held, so by nobody twice."""
        if self._id is None:
            return
        from prefect.exceptions import ObjectNotFound

        try:
            with _client() as client:
                with suppress(ObjectNotFound):
                    if passing:
                        client.delete_global_concurrency_limit_by_name(self._name)
                client.release_concurrency_slots_with_lease(self._id)
            self._note.unlink(missing_ok=True)
        except (httpx.HTTPError, OSError) as error:
            log.warning("%s: not given back (%s); it runs out in a minute", self._name, error)

    def _take(self, client: SyncPrefectClient) -> bool:
        """Ask for the place and note that it is ours; False where others have all."""
        try:
            answer = client.increment_concurrency_slots_with_lease([self._name], 1, "concurrency", LEASE).json()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.LOCKED:
                return False
            raise
        lease = UUID(answer["lease_id"])
        if answer["limits"]:
            self._id = lease
            write_json(self._note, {"host": socket.gethostname(), "lease": str(lease)})
            return True
        client.release_concurrency_slots_with_lease(lease)  # of nothing: there is no such limit yet
        self._make_limit(client)
        return self._take(client)

    def _make_limit(self, client: SyncPrefectClient) -> None:
        from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
        from prefect.exceptions import ObjectAlreadyExists

        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=self._name, limit=1))
        except (ObjectAlreadyExists, httpx.HTTPStatusError):  # the server answers 500 where another was quicker
            client.read_global_concurrency_limit_by_name(self._name)

    def _free_dead(self, client: SyncPrefectClient) -> None:
        """Give back what a process of this machine left that was killed: the caller has its lock file now."""
        noted = _read_note(self._note)
        if noted.get("host") == socket.gethostname():
            client.release_concurrency_slots_with_lease(UUID(noted["lease"]))

    def _holder(self) -> str:
        return f"a process on {_read_note(self._note).get('host', 'another machine')}"


def _read_note(note: Path) -> dict[str, Any]:
    try:
        return json.loads(note.read_text())
    except (OSError, ValueError):
        return {}


@contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    from prefect.client.orchestration import get_client  # reads its settings when it is imported

    with get_client(sync_client=True) as client:
        yield client
