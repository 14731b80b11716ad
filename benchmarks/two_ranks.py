"""Wall and CPU seconds of training with one rank (process) and with two, for equal env steps and gradient steps.

    python benchmarks/two_ranks.py [REPEATS]

Each of two ranks has half of the environments and half of the minibatch, so samples and gradient steps are as many as
with one rank. Runs with one and two ranks alternate. The program prints a Markdown table and keeps no files.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SHORT = ["algo.run_test=false", "evaluation.every=10000000", "checkpoint.every=10000000"]
COMMON = ["exp=ppo", "env.capture_video=false", "model_manager.disabled=true", "algo.compile=false", *SHORT]
QUIET = ["evaluation.baseline_episodes=1", "metric.log_level=0"]
CASES = {
    "CartPole-v1, 2 x 64 units": "algo.total_steps=131072 algo.per_rank_batch_size={M}",
    "CartPole-v1, 2 x 512 units": "algo.total_steps=65536 algo.per_rank_batch_size={M} algo.dense_units=512",
    "HalfCheetah-v5, 2 x 256 units": "env=mujoco env.id=HalfCheetah-v5 algo.total_steps=65536 algo.dense_units=256 "
    "algo.per_rank_batch_size={M}",
}


def measure(case: str, ranks: int, home: Path) -> tuple[float, float, int, float]:
    """Train and return wall seconds, CPU seconds of all processes, gradient steps, and mean of the last 100 returns."""
    run = home / f"run-{time.monotonic_ns()}"
    size = {"M": 512 // ranks}
    words = [*COMMON, *QUIET, *CASES[case].format(**size).split(), f"env.num_envs={16 // ranks}"]
    command = [sys.executable, "-m", "flows.cli.main", "stage", "train", str(run)]
    make = [sys.executable, "-m", "flows.cli.main", "stage", "make-env", str(run), *words, f"fabric.devices={ranks}"]
    environment = {"SHEPHERD_HOME": str(home), "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": "sqlite:////dev/null/x"}
    subprocess.run(make, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = psutil.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used: dict[int, float] = {}
    while process.poll() is None:
        for child in [process, *process.children(recursive=True)]:
            try:
                times = child.cpu_times()
                used[child.pid] = times.user + times.system
            except psutil.Error:
                continue
        time.sleep(0.05)
    assert process.returncode == 0
    (newest,) = (run / "checkpoints").glob("[0-9]*")
    kept = json.loads((newest / "bookkeeping" / "state.json").read_text())
    recent = kept["recent"] or [float("nan")]
    return kept["wall_s"], sum(used.values()), kept["updates"], sum(recent) / len(recent)


def main(repeats: int) -> None:
    print("| | ranks | training, wall | all processes, CPU | gradient steps | return |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            runs_of = {1: [], 2: []}
            for _ in range(repeats):
                for ranks in runs_of:
                    runs_of[ranks].append(measure(case, ranks, Path(folder)))
            for ranks, runs in runs_of.items():
                wall, cpu, steps, ret = (statistics.median(column) for column in zip(*runs, strict=True))
                print(f"| {case} | {ranks} | {wall:.1f} s | {cpu:.1f} s | {steps:,.0f} | {ret:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
