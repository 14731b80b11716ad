"""PPO on CartPole-v1 beside Stable-Baselines3: the same settings, alternating runs, whole processes.

    python benchmarks/ppo_cartpole.py --sb3-python /path/to/venv/with/stable-baselines3/bin/python [--runs 3]

Protocol A of the peers' own benchmarks: 65,536 steps, 1 environment, rollouts of 128, minibatches of 64, 10 epochs,
two tanh layers of 64, one thread. Counted: CPU and wall seconds of the whole process, imports included. Prints the
median of each and the ratio; nothing here is a test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PEER = """
import sys, torch
from stable_baselines3 import PPO
torch.set_num_threads(1)
model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=10, learning_rate=3e-4, vf_coef=0.5,
            max_grad_norm=0.5, device="cpu", seed=int(sys.argv[1]))
model.learn(int(sys.argv[2]))
"""

OURS = """
import sys
from flows.runs.create import new_run
from flows.runs.trainer import released
from flows.stages.make_env import make_env
from flows.stages.train import to_the_end
overrides = ["exp=ppo_benchmarks", f"seed={sys.argv[1]}", f"algo.total_steps={sys.argv[2]}", f"run_dir={sys.argv[3]}"]
run = new_run(overrides)
with released(run):
    make_env(run)
    to_the_end(run)
"""


def measured(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of a command with its children."""
    began = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[0]}: failed")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=65_536)
    options = parser.parse_args()
    figures: dict[str, list[tuple[float, float]]] = {"shepherd": [], "stable-baselines3": []}
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        for run in range(options.runs):
            seed, steps = str(run), str(options.steps)
            figures["stable-baselines3"].append(measured([options.sb3_python, "-c", PEER, seed, steps]))
            figures["shepherd"].append(measured([sys.executable, "-c", OURS, seed, steps, str(folder / seed)]))
    finally:
        shutil.rmtree(folder)
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in figures.items()
    }
    for name, (cpu, wall) in medians.items():
        print(f"{name:18} {cpu:7.1f} CPU s {wall:7.1f} s wall")
    ratios = [theirs / ours for theirs, ours in zip(medians["stable-baselines3"], medians["shepherd"], strict=True)]
    print(f"{'ratio':18} {ratios[0]:7.2f}       {ratios[1]:7.2f}")


if __name__ == "__main__":
    main()
