"""Fabric and torch's global switches, set once in the process that trains."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.compiled.scan import refuse_sum_over_ranks
from rlcore.config.groups import FabricConfig, RunConfig
from rlcore.errors import EnvironmentFault, UserError
from rlcore.store.checkpoint import nested_state
from rlcore.system.torch_switches import Switches, read_switches, set_switches_back
from rlcore.train.device import PRECISIONS, check_device
from rlcore.train.rendezvous import VARIABLE, join
from rlcore.types import Chunk

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# Fabric rewrites DataLoader's own methods while it launches: two threads at once take each other's rewriting for the
# original (lightning_fabric.utilities.data._replace_dunder_methods).
_LAUNCHING = threading.Lock()


def set_switches(config: RunConfig) -> None:
    """Threads, matmul precision and determinism of torch in this process."""
    if config.cublas_workspace_config is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = config.cublas_workspace_config
    torch.set_num_threads(config.num_threads)
    torch.set_float32_matmul_precision(config.float32_matmul_precision)
    # As torch.use_deterministic_algorithms, which sets the compiler's switch as well and imports it for that.
    torch.set_deterministic_debug_mode("error" if config.torch_use_deterministic_algorithms else "default")
    torch.backends.cudnn.benchmark = config.torch_backends_cudnn_benchmark
    torch.backends.cudnn.deterministic = config.torch_backends_cudnn_deterministic


def refuse_changed_switches(before: Switches) -> None:
    """Refuse, in an EnvironmentFault, that switches are not as they were before environments were called."""
    if read_switches() != before:
        changes = ", ".join(set_switches_back(before))
        raise EnvironmentFault(
            f"an environment called {changes}, which changes how this process computes everything else; remove that "
            "call, or give environments processes of their own (env.sync_env=false)"
        )


def refuse_default_dtype() -> None:
    """Refuse, in a UserError, to build networks while torch's default type is another than float32."""
    if (found := torch.get_default_dtype()) is not torch.float32:
        raise UserError(
            f"torch's default type is {found}, and fabric.precision decides that of the networks; call "
            "torch.set_default_dtype(torch.float32), or remove the call that changed it"
        )


class FabricRanks:
    """The ranks of a Fabric, as `rlcore.types.Ranks`."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.rank, self.size = fabric, fabric.global_rank, fabric.world_size

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.size == 1:
            return value
        refuse_sum_over_ranks()
        total = value.detach().to(self.fabric.device, copy=True).contiguous()  # NCCL takes nothing else
        torch.distributed.all_reduce(total)  # Fabric's own waits at a barrier first
        return total.to(value.device)

    def gather(self, value: Any) -> list[Any]:
        """Values of each rank, in their order, as `nested_state` decodes them: nothing is unpickled."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(_to_bytes(value), dtype=torch.uint8).to(self.fabric.device)
        length = torch.tensor([len(own)], device=self.fabric.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        torch.distributed.all_gather(lengths, length)
        longest = max(int(each) for each in lengths)
        held = [own.new_empty(longest) for _ in range(self.size)]
        torch.distributed.all_gather(held, torch.nn.functional.pad(own, (0, longest - len(own))))
        return [
            _from_bytes(each[: int(size)].cpu().numpy().tobytes()) for each, size in zip(held, lengths, strict=True)
        ]


def _to_bytes(value: Any) -> bytearray:
    shape, numbers = nested_state.encode(value, lambda chunk: chunk.stored if chunk.light else None)
    return bytearray(len(shape).to_bytes(8, "little") + shape + numbers)


def _from_bytes(data: bytes) -> Any:
    start = 8 + int.from_bytes(data[:8], "little")
    names = "what a rank sent", "what a rank sent"
    return nested_state.decode(data[8:start], data[start:], names, lambda stored: Chunk(dict, stored))


def make_fabric(config: FabricConfig) -> Fabric:
    """The Fabric of this process, launched: alone, or as the rank that its environment says (rlcore.train.ranks)."""
    check_device(config)
    if config.ranks > 1 and VARIABLE not in os.environ:
        raise UserError(f"fabric.devices={config.devices}: a run trains on several devices; type shepherd train")
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
            # Not looked for: to ask mpi4py, where it is installed, starts MPI, which can end this process in silence.
            plugins=LightningEnvironment(),
        )
        if config.ranks > 1:
            join(int(os.environ[VARIABLE]), int(os.environ["LOCAL_RANK"]), config.ranks, fabric.device)
        fabric.launch()
    return fabric
