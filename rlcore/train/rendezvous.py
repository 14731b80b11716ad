"""Process group of a training on several devices, which no other user of the machine can join.

torch's default store is a server on a TCP port, to which every user can connect. Here the store is a file in memory
without a name; the processes inherit its descriptor. gloo connects over TCP on the loopback interface and accepts the
first connection that names a rank, so each process then proves to each other one that it can read the store.
"""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch
from torch import distributed

from rlcore.errors import RunError

VARIABLE = "SHEPHERD_RANKS_STORE"  # number of the descriptor of the file
LIMIT = timedelta(minutes=5)  # for the proofs; all processes send theirs at about the same time
PROOF = 16  # bytes


def join(descriptor: int, rank: int, size: int, device: torch.device) -> None:
    """Initialize torch's process group, before Fabric would do it.

    Args:
        descriptor: of the file in memory that all processes have inherited. It must stay open: torch opens the file
            again by its number.
        rank: index of this process.
        size: number of processes.
        device: of this process; decides between NCCL and gloo.

    Raises:
        RunError: a process that cannot read the store answered in place of a rank.
    """
    store = distributed.FileStore(f"/proc/self/fd/{descriptor}", size)
    store.set_timeout(distributed.default_pg_timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
        atexit.register(distributed.destroy_process_group)  # else torch warns
        return  # NCCL's connections begin with a random number, which the store alone has
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    _check_peers(store, rank, size)


def _check_peers(store: distributed.Store, rank: int, size: int) -> None:
    """Refuse, in a RunError, a connection whose other end does not know the random bytes that a rank put in the store.

    Each connection has bytes of its own for each direction, so that those sent to an impostor are of no use to it.
    """
    proofs = os.urandom(size * PROOF)
    store.set(f"proofs/{rank}", proofs.hex())
    sent = torch.frombuffer(bytearray(proofs), dtype=torch.uint8)
    received = torch.empty_like(sent)
    work = distributed.all_to_all_single(received, sent, async_op=True)
    assert work is not None
    work.wait(LIMIT)
    given = received.numpy().tobytes()
    for other in range(size):
        expected = bytes.fromhex(store.get(f"proofs/{other}").decode())
        if given[other * PROOF : (other + 1) * PROOF] != expected[rank * PROOF : (rank + 1) * PROOF]:
            raise RunError(
                f"another program of this machine connected to rank {rank} in place of rank {other}; nothing was sent "
                "to it, start the run again"
            )
