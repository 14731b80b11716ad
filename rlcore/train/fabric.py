"""Setup of Fabric and of torch's global switches, once in each training process.

The processes of a training on several devices form a process group that no other user of the machine can join. torch's
default store is a server on a TCP port, to which every user can connect. Here the store is an unnamed file in memory,
and the processes inherit its descriptor. gloo connects over TCP on the loopback interface, and believes the first
connection that claims to be a certain rank. Therefore each process then proves to every other process that it can read
the store.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from rlcore.compiled.scan import refuse_sum_over_ranks
from rlcore.config.groups import FabricConfig
from rlcore.config.run import RunConfig
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.store.checkpoint import nested_state
from rlcore.system.torch_switches import Switches, read_switches, set_switches_back
from rlcore.train.ranks import VARIABLE
from rlcore.train.resource_check import PRECISIONS, check_device
from rlcore.types import Chunk

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# Fabric patches the methods of DataLoader while it launches. If two threads launch at once, one of them takes the
# patched methods for the original ones (lightning_fabric.utilities.data._replace_dunder_methods).
_LAUNCHING = threading.Lock()
LIMIT = timedelta(minutes=5)  # timeout of the proofs; all processes send theirs at about the same time
PROOF = 16  # size of a proof in bytes


def set_switches(config: RunConfig) -> None:
    """Set threads, matmul precision and determinism of torch in this process."""
    if config.cublas_workspace_config is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = config.cublas_workspace_config
    torch.set_num_threads(config.num_threads)
    torch.set_float32_matmul_precision(config.float32_matmul_precision)
    # Same effect as torch.use_deterministic_algorithms, which would also import the compiler to set its switch.
    torch.set_deterministic_debug_mode("error" if config.torch_use_deterministic_algorithms else "default")
    torch.backends.cudnn.benchmark = config.torch_backends_cudnn_benchmark
    torch.backends.cudnn.deterministic = config.torch_backends_cudnn_deterministic


def refuse_changed_switches(before: Switches) -> None:
    """Raise an EnvironmentFault if torch's global switches differ from `before`; also reset them to `before`.

    Call `read_switches` before code of an environment runs, and this function after it.
    """
    if read_switches() != before:
        changes = ", ".join(set_switches_back(before))
        raise EnvironmentFault(
            f"the code of an environment calls {changes}, which changes all computations of this process; remove it, "
            "or run the environments in separate processes (env.sync_env=false)"
        )


def refuse_default_dtype() -> None:
    """Raise a UserError if torch's default dtype is not float32, because the networks would have that dtype."""
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        raise UserError(
            f"the default dtype of torch is {dtype}, but must be torch.float32 (fabric.precision sets the dtype of the "
            "networks); call torch.set_default_dtype(torch.float32), or remove the call that changed it"
        )


class FabricRanks:
    """Ranks (training processes) of a Lightning Fabric object, with the interface `rlcore.types.Ranks`."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.rank, self.size = fabric, fabric.global_rank, fabric.world_size

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks. All ranks must call this method together."""
        if self.size == 1:
            return value
        refuse_sum_over_ranks()
        total = value.detach().to(self.fabric.device, copy=True).contiguous()  # NCCL requires contiguous tensors
        distributed.all_reduce(total)  # Fabric.all_reduce would also wait at a barrier
        return total.to(value.device)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order. All ranks must call this method together.

        Values are nested states: mappings, sequences, tensors, numbers and strings. They are not pickled.
        """
        if self.size == 1:
            return [value]
        own = nested_state.encode_message(value, lambda chunk: chunk.stored if chunk.light else None)
        own = own.to(self.fabric.device)
        length = torch.tensor([len(own)], device=self.fabric.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        distributed.all_gather(lengths, length)
        longest = max(int(each) for each in lengths)
        padded = [own.new_empty(longest) for _ in range(self.size)]
        distributed.all_gather(padded, torch.nn.functional.pad(own, (0, longest - len(own))))
        messages = (each[: int(size)] for each, size in zip(padded, lengths, strict=True))
        name = "the message of a rank"
        return [nested_state.decode_message(each, name, lambda stored: Chunk(dict, stored)) for each in messages]


def make_fabric(config: FabricConfig) -> Fabric:
    """Launch and return the Fabric of this process; environment variables set its rank (`rlcore.train.ranks`)."""
    check_device(config)
    if config.ranks > 1 and VARIABLE not in os.environ:
        raise UserError(
            f"fabric.devices={config.devices}: only `shepherd train` can train on several devices; use that command, "
            "or set fabric.devices=1"
        )
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    with _LAUNCHING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import LightningEnvironment

        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.ranks if config.indices is None else [*config.indices],
            num_nodes=1,
            strategy="ddp" if config.ranks > 1 else "auto",
            precision=PRECISIONS.get(config.precision, config.precision),  # pyright: ignore[reportArgumentType]
            # Set explicitly: detection would import mpi4py if installed, which starts MPI and can end this process.
            plugins=LightningEnvironment(),
        )
        if config.ranks > 1:
            join(int(os.environ[VARIABLE]), int(os.environ["LOCAL_RANK"]), config.ranks, fabric.device)
        fabric.launch()
    return fabric


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
