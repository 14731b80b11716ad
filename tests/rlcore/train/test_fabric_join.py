"""Two processes join through a private store, refuse an impostor and execute no received code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

# The child prints its results, or the exception that ended it.
BEGIN = """
    import os, pickle, sys
    from types import SimpleNamespace
    import torch
    from torch import distributed
    from rlcore.errors import RunError, UserError
    from rlcore.train.fabric import FabricRanks, join
    from rlcore.types import Chunk

    rank, cpu = int(sys.argv[1]), torch.device("cpu")
    ranks = FabricRanks(SimpleNamespace(device=cpu, global_rank=rank, world_size=2))

    class Harmful:
        def __reduce__(self):
            return print, ("harm",)
"""
EXCHANGE = """
    join(int(sys.argv[2]), rank, 2, cpu)
    chunk = Chunk(lambda: {"x": torch.ones(2)}, {"here": {"size": 3 + rank}}, light=True)
    held = Chunk(lambda: {"x": torch.full((2,), float(rank))})
    first, second = ranks.gather({"loss": torch.tensor([0.1]) + rank, rank: [(1, None)], "light": chunk, "held": held})
    print(first["loss"], second["loss"], first[0], second[1], sorted(map(str, first)), sorted(map(str, second)))
    print(second["light"].stored, second["light"].columns(), second["held"].columns())
    distributed.barrier()
"""
HARM = """
    join(int(sys.argv[2]), rank, 2, cpu)
    if rank == 0:
        try:
            print(ranks.gather(None))
        except UserError as error:
            print(error)
    else:
        pickled = torch.frombuffer(bytearray(pickle.dumps(Harmful())), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
        distributed.all_gather(sizes, torch.tensor([len(pickled)]))
        length = int(max(sizes))
        padded = torch.nn.functional.pad(pickled, (0, length - len(pickled)))
        distributed.all_gather([torch.empty_like(padded) for _ in range(2)], padded)
    distributed.barrier()
"""
IMPOSTOR = """
    if rank == 1:
        exchange = distributed.all_to_all_single
        forge = lambda given: torch.cat([torch.zeros_like(given[:16]), given[16:]])
        distributed.all_to_all_single = lambda out, given, **how: exchange(out, forge(given), **how)
    try:
        join(int(sys.argv[2]), rank, 2, cpu)
    except RunError as error:
        print(error)
    else:
        print("joined")
    distributed.barrier()
"""


def run_two(work: str) -> list[str]:
    """Return what each of two processes printed."""
    store = os.memfd_create("ranks")
    try:
        code = textwrap.dedent(BEGIN) + textwrap.dedent(work)
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(rank), str(store)],
                cwd=Path(__file__).parents[3],
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[store],
            )
            for rank in (0, 1)
        ]
        outputs = [child.communicate(timeout=300)[0].strip() for child in children]
    finally:
        os.close(store)
    assert [child.returncode for child in children] == [0, 0], outputs
    return outputs


def test_gather_returns_what_each_rank_has() -> None:
    expected = (
        "tensor([0.1000]) tensor([1.1000]) [[1, None]] [[1, None]] ['0', 'held', 'light', 'loss'] "
        "['1', 'held', 'light', 'loss']\n{'here': {'size': 4}} {} {'x': tensor([1., 1.])}"
    )
    assert run_two(EXCHANGE) == [expected, expected]


def test_gather_runs_no_code_of_other_process() -> None:
    first, _ = run_two(HARM)
    assert first.startswith("the message of a rank is not") and "harm" not in first


def test_join_refuses_process_without_store() -> None:
    refused, impostor = run_two(IMPOSTOR)
    assert "another program on this machine connected to rank 0 in place of rank 1" in refused
    assert impostor == "joined"
