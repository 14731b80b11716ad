"""Process group for training on several devices, which no other user of the machine can join.

torch's default store is a server on a TCP port, to which every user can connect. Here the store is an unnamed file in
memory, and the processes inherit its descriptor. gloo connects over TCP on the loopback interface, and believes the
first connection that claims to be a certain rank. Therefore each process then proves to every other process that it can
read the store.
"""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch
from torch import distributed

from rlcore.errors import RunError

VARIABLE = "SHEPHERD_RANKS_STORE"  # number of the descriptor of the file
LIMIT = timedelta(minutes=5)  # timeout of the proofs; all processes send theirs at about the same time
PROOF = 16  # size of a proof in bytes


def join(descriptor: int, rank: int, size: int, device: torch.device) -> None:
    """Initialize torch's process group before Fabric does it.

    The processes exchange their addresses through torch's store, which is a file in memory that they have inherited.

    Args:
        descriptor: file descriptor of the inherited file in memory. It must stay open, because torch opens the file
            again through the descriptor.
        rank: index of this process.
        size: number of processes.
        device: device of this process; CUDA uses NCCL, all others gloo.

    Raises:
        RunError: A program that is not part of this training has connected and claims to be a rank. This is detected,
            because the program cannot read the file.
    """
    store = distributed.FileStore(f"/proc/self/fd/{descriptor}", size)
    store.set_timeout(distributed.default_pg_timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
        atexit.register(distributed.destroy_process_group)  # torch would warn otherwise
        return  # NCCL authenticates connections by a random number that only the store contains
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    _check_peers(store, rank, size)


def _check_peers(store: distributed.Store, rank: int, size: int) -> None:
    """Raise a RunError if a connection does not lead to a rank of this training.

    Each rank writes random bytes to the store, and sends them over its connections. The receiver compares the bytes
    with those in the store. Each connection has different bytes for each direction, so that an impostor cannot send
    back the bytes that it has received.
    """
    proofs = os.urandom(size * PROOF)
    store.set(f"proofs/{rank}", proofs.hex())
    sent = torch.frombuffer(bytearray(proofs), dtype=torch.uint8)
    received = torch.empty_like(sent)
    work = distributed.all_to_all_single(received, sent, async_op=True)
    assert work is not None
    work.wait(LIMIT)
    answers = received.numpy().tobytes()
    for other in range(size):
        expected = bytes.fromhex(store.get(f"proofs/{other}").decode())
        if answers[other * PROOF : (other + 1) * PROOF] != expected[rank * PROOF : (rank + 1) * PROOF]:
            raise RunError(
                f"another program on this machine connected to rank {rank} in place of rank {other}; no data was sent "
                "to it; start the run again"
            )
