"""Locks that exclude processes on other machines: leases of the Prefect server, in addition to lock files.

A lock file excludes other processes of this machine. It excludes processes of other machines only if the file system
supports `flock` across machines. Therefore, if PREFECT_API_URL is set, the process that has locked the file also
acquires a lock from that server: the only slot of a global concurrency limit, a feature of Prefect. The slot is leased
for a minute and the process renews the lease. If its machine fails, the lease expires. Prefect's `concurrency()` is not
used: it hides its lease, and does not acquire the slot again after an outage.

The process records the lease in a file next to the lock file. If the process is killed, another process of the same
machine can lock the lock file. It then knows that the owner of the recorded lease is dead, and releases the lease
without waiting for its expiry.
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

LEASE = 60.0  # seconds; the shortest lease that the server accepts
RENEW_EVERY = 15.0  # seconds
PATIENCE = 90.0  # seconds within which the server frees an expired lease; it checks every 15
ASK_EVERY = 1.0  # seconds between two attempts to acquire the lock
PARTING = 10.0  # seconds for the release
log = logging.getLogger(__name__)


@contextmanager
def hold_lease(name: str, note: Path, refusal: str = "") -> Iterator[None]:
    """Context manager that acquires a named lock which only one process on all machines can have at a time.

    The Prefect server manages the lock. Without a configured server, the context does nothing. If the server is
    unreachable, only the lock file excludes other processes, because training must not stop or wait for the server.

    The lock is a global concurrency limit of the Prefect server: an object that at most one process can acquire.

    Args:
        name: name of the lock; letters, digits and dashes.
        note: file that records the lease, next to the lock file. The caller must have locked the lock file.
        refusal: end of the error message if a process on another machine has the lock. If it is "", the context waits
            for the lock without a time limit. If it is not "", the lock belongs to one run or sweep, and the
            concurrency limit is deleted on exit.

    Raises:
        UserError: A process on another machine has the lock, and `refusal` is not empty.
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
        log.warning("%s: Prefect's server is unreachable (%s); only the lock file excludes others", name, error)
        yield
        return
    over = threading.Event()
    # Prefect stores the current server in the context.
    keeper = threading.Thread(target=copy_context().run, args=(lease.keep, over, bool(refusal)), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        # A request to an unreachable server times out only after a minute; the lease then expires by itself.
        keeper.join(time_left(PARTING))


def is_held_elsewhere(note: Path) -> bool:
    """Return True if the lease that is recorded in a file was acquired by another machine.

    This check complements the lock file, whose lock may not be visible across machines.
    """
    return _read_note(note).get("host", socket.gethostname()) != socket.gethostname()


class _Lease:
    def __init__(self, name: str, note: Path) -> None:
        self._name, self._note = f"shepherd-{name}", note
        self._id: UUID | None = None

    def take(self, refusal: str) -> None:
        """Acquire the lease; wait while another process has it.

        With a `refusal`, wait at most `PATIENCE` seconds, then raise UserError.
        """
        deadline = time.monotonic() + PATIENCE
        with _client() as client:
            self._free_dead(client)
            logged = bool(refusal)
            while not self._take(client):
                if refusal and time.monotonic() > deadline:
                    raise UserError(f"a process on {self._host()} {refusal}")
                if not logged:
                    log.warning("%s: waiting for a process on %s, which has this lock", self._name, self._host())
                    logged = True
                time.sleep(ASK_EVERY)

    def keep(self, over: threading.Event, passing: bool) -> None:
        """Renew the lease every 15 s until `over` is set, then release it.

        If the lease expired during a server outage, it is requested again.

        Args:
            over: set by the main thread when the lock is no longer needed.
            passing: True if the name of the lock is not used again; the concurrency limit is then deleted.
        """
        while not over.wait(RENEW_EVERY):
            try:
                with _client() as client:
                    if self._id is not None:
                        client.renew_concurrency_lease(self._id, LEASE)
                    else:
                        self._take(client)
            except httpx.HTTPStatusError:
                self._id = None
                log.warning("%s: the lease expired while Prefect's server was unreachable", self._name)
            except Exception as error:  # no failure here may stop the training; the next attempt may succeed
                log.debug("%s: lease not renewed: %s", self._name, error)
        self._give_back(passing)

    def _give_back(self, passing: bool) -> None:
        """Release the lease, and delete the server's concurrency limit if `passing` is True.

        The limit is deleted first. Otherwise another process could acquire it between release and deletion.
        """
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
            log.warning("%s: lease not released (%s); it expires in a minute", self._name, error)

    def _take(self, client: SyncPrefectClient) -> bool:
        """Try to acquire the lease, and record it in the file. Return False if another process has it."""
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
        client.release_concurrency_slots_with_lease(lease)  # an empty lease, because the limit does not exist yet
        self._make_limit(client)
        return self._take(client)

    def _make_limit(self, client: SyncPrefectClient) -> None:
        from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
        from prefect.exceptions import ObjectAlreadyExists

        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=self._name, limit=1))
        except (ObjectAlreadyExists, httpx.HTTPStatusError):  # the server answers 500 if another process was faster
            client.read_global_concurrency_limit_by_name(self._name)

    def _free_dead(self, client: SyncPrefectClient) -> None:
        """Release the recorded lease if a process of this machine acquired it.

        That process was killed before it could release the lease: this process has locked the lock file now, and the
        system unlocks the file only when the process that locked it ends.
        """
        noted = _read_note(self._note)
        if noted.get("host") == socket.gethostname():
            client.release_concurrency_slots_with_lease(UUID(noted["lease"]))

    def _host(self) -> str:
        return str(_read_note(self._note).get("host", "another machine"))


def _read_note(note: Path) -> dict[str, Any]:
    try:
        return json.loads(note.read_text())
    except (OSError, ValueError):
        return {}


@contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    from prefect.client.orchestration import get_client  # Prefect reads its settings when it is imported

    with get_client(sync_client=True) as client:
        yield client
