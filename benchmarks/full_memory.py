"""Cost of a full replay buffer: time and size of a checkpoint, time to resume, and bytes read to load the policy.

python -m benchmarks.full_memory      # prints a table; SAC on HalfCheetah-v5, 1 M rows; 1 minute, 1 GB, extra `mujoco`
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flows.runs.create import new_run
from flows.stages.make_env import make_env
from rlcore.evaluation.final import evaluate_checkpoint
from rlcore.evaluation.policy import load_policy
from rlcore.store import checkpoint
from rlcore.store.checkpoint import chunks
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from rlcore.types import Trajectory

ROWS, WIDTH, INTERVAL = 1_000_000, 4, 50_000  # of a run of 1 M steps with 20 checkpoints
BLOCK = 1_000  # rows of each environment per call of `extend`
RESUME = "resume"


def fill(session: RunTrainer, rows: int, seed: int) -> None:
    """Add `rows` rows of random numbers to the replay buffer; keys, shapes and dtypes are those of the environment."""
    rng, spec = torch.Generator().manual_seed(seed), session.envs.spec
    for _ in range(0, rows, BLOCK * WIDTH):
        session.training.buffer.extend(block(rng, spec, BLOCK, WIDTH), block(rng, spec, WIDTH))


def block(rng: torch.Generator, spec: Any, *lead: int) -> Trajectory:
    obs = {
        key: torch.randn(*lead, *part.shape, generator=rng).to(getattr(torch, part.dtype))
        for key, part in spec.obs.items()
    }
    ends = torch.rand(lead, generator=rng) < 1e-3
    action = torch.randn(*lead, spec.action.size, generator=rng)
    return Trajectory(obs, action, torch.randn(lead, generator=rng), ends & False, ends, ends & False)


def time_call(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def bytes_read() -> int:
    """Return the number of bytes that this process has read since its start, from the disk or the page cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def size(folder: Path) -> int:
    """Return the total size of all files in a folder and its subfolders, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def resume(folder: str) -> None:
    """Resume a run in this process and print the wall seconds, CPU seconds and bytes read."""
    began = bytes_read()
    wall, cpu = time_call(lambda: RunTrainer(RunDirectory(folder)).close())
    print(json.dumps([wall, cpu, bytes_read() - began]))


def time_resume(run: RunDirectory) -> tuple[float, float, int]:
    """Resume a run in a new process; return wall seconds, CPU seconds and bytes read, without the cost of imports."""
    command = [sys.executable, "-m", "benchmarks.full_memory", RESUME, str(run.path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wall, cpu, count = json.loads(output.splitlines()[-1])
    return wall, cpu, count


def figures(folder: Path) -> list[tuple[str, float, float, float]]:
    """Measure the operations in a folder, and return (operation, wall seconds, CPU seconds, bytes) for each.

    Bytes are those that the operation wrote or read.
    """
    keys = f"exp=sac env.id=HalfCheetah-v5 env.num_envs={WIDTH} algo.total_steps={ROWS} buffer.size={ROWS}"
    run = new_run([*keys.split(), "model_manager.disabled=true", "algo.compile=false", f"run_dir={folder / 'run'}"])
    make_env(run)
    rows: list[tuple[str, float, float, float]] = []

    def add_row(what: str, function: Callable[[], Any]) -> None:
        before = size(run.checkpoints)
        took = time_call(function)
        rows.append((what, *took, size(run.checkpoints) - before))

    session = RunTrainer(run)
    session.training.collector.collect(1)
    add_row("checkpoint, empty buffer", session.save)
    rows.append(("resume, empty buffer", *time_resume(run)))
    fill(session, ROWS, seed=0)
    for number, (new, what) in enumerate(((0, "all rows new"), (INTERVAL, f"{INTERVAL:,} rows new"), (0, "none new"))):
        fill(session, new, seed=number + 1)
        session.training.collector.collect(1)  # a checkpoint needs a new step
        add_row(f"checkpoint of 1 M rows, {what}", session.save)
    session.close()
    rows.append(("resume with 1 M rows", *time_resume(run)))
    newest = checkpoint.resolve(run)
    shutil.rmtree(run.checkpoints / chunks.FOLDER)
    without = "without the buffer's chunks"
    began = bytes_read()
    rows.append((f"load the policy, {without}", *time_call(lambda: load_policy(newest)), bytes_read() - began))
    began = bytes_read()
    took = time_call(lambda: evaluate_checkpoint(run, newest, 1))
    rows.append((f"play an episode of the policy, {without}", *took, bytes_read() - began))
    return rows


def main() -> None:
    """Measure and print the table."""
    if sys.argv[1:2] == [RESUME]:
        resume(sys.argv[2])
        return
    torch.set_num_threads(1)
    print("| | wall s | CPU s | MB written or read |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for what, wall, cpu, count in figures(Path(folder)):
            print(f"| {what} | {wall:.2f} | {cpu:.2f} | {count / 1e6:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
