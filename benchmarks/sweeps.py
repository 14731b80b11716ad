"""Trials per minute of three methods: `shepherd sweep`, separate `shepherd train` commands, and RL Zoo3.

    make bench-sweeps                 # installs RL Zoo3 in .shepherd/zoo, and writes docs/results/sweeps.md
    python -m benchmarks.sweeps --zoo VENV/bin/python [--trials 8]

The task is PPO on CartPole-v1 with 40,000 steps per trial, about ten seconds with Stable-Baselines3. The learning rate
and the discount are drawn at random. Each trial has five evaluations of five episodes and is not pruned. Two trials run
at the same time, with one thread each. The times include the startup of each command and the report that it writes at
its end. The overhead per trial is measured in a separate sweep with one worker and very short trials, as the mean time
from the end of one trial to the end of the next. About a tenth of this time is training.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.settings import home

STEPS, TINY = 40_000, 512
SAME = [
    "exp=ppo",
    "env.id=CartPole-v1",
    "env.num_envs=8",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=256",
    "algo.update_epochs=20",
    "evaluation.episodes=5",
]
SPACE = ["algo.optimizer.lr=tag(log,interval(1e-4,1e-2))", "algo.gamma=interval(0.9,0.999)"]
PLAIN = ["sweep.sampler=random", "sweep.pruner=none", "sweep.confirm_seeds=0"]
ZOO = """
import sys
from rl_zoo3 import hyperparams_opt

def draw(trial, n_actions, n_envs, additional_args):
    rate, gamma = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True), trial.suggest_float("gamma", 0.9, 0.999)
    return {"learning_rate": rate, "gamma": gamma}

hyperparams_opt.HYPERPARAMS_SAMPLER["ppo"] = draw
from rl_zoo3.train import train
train()
"""
ZOO_CONFIG = """
CartPole-v1:
  n_envs: 8
  n_timesteps: 40000
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  n_epochs: 20
"""


def shepherd(*arguments: str) -> float:
    """Run a `shepherd` command and return its wall-clock seconds."""
    return seconds([sys.executable, "-m", "flows.cli.main", *arguments])


def seconds(command: Sequence[str]) -> float:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=home(), env=kept | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return time.perf_counter() - began


def of_steps(steps: int) -> list[str]:
    return [*SAME, f"algo.total_steps={steps}", f"evaluation.every={steps // 5}"]


def sweep(folder: Path, name: str, steps: int, trials: int, workers: int) -> float:
    counts = [f"sweep.trials={trials}", f"sweep.workers={workers}", f"sweep.name={name}", f"log_root={folder}"]
    return shepherd("sweep", *of_steps(steps), *SPACE, *PLAIN, *counts)


def flow_runs(folder: Path, trials: int, workers: int) -> float:
    """Train `trials` times with separate `shepherd train` commands, `workers` at a time; return the wall seconds.

    Each command is a separate flow run of Prefect. The result is compared with a sweep of the same number of trials.
    """
    short = ["env.capture_video=false", "evaluation.baseline_episodes=10", "algo.run_test=false"]
    short += ["model_manager.disabled=true"]
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as places:
        for number in range(trials):
            drawn = [f"algo.optimizer.lr={1e-3 * (1 + number)}", f"run_dir={folder}/flow_{number}"]
            places.submit(shepherd, "train", *of_steps(STEPS), *short, *drawn)
    return time.perf_counter() - began


def zoo(python: str, folder: Path, trials: int, workers: int) -> float:
    config = folder / "zoo.yml"
    config.write_text(ZOO_CONFIG)
    words = ["--algo", "ppo", "--env", "CartPole-v1", "-n", str(STEPS), "-optimize", "--n-trials", str(trials)]
    words += ["--n-jobs", str(workers), "--sampler", "random", "--pruner", "none", "--n-evaluations", "5"]
    words += ["--eval-episodes", "5", "--num-threads", "1", "--device", "cpu", "--verbose", "0"]
    return seconds([python, "-c", ZOO, *words, "-conf", str(config), "-f", str(folder / "zoo")])


def between_trials(runs: Path) -> float:
    """Return the mean seconds between the ends of successive trials in a sweep with one worker."""
    logs = [path.read_text().splitlines() for path in runs.glob("trial_*/seed_*/events.jsonl")]
    ends = sorted(json.loads(line)["time"] for log in logs for line in log if '"kind": "end"' in line)
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def processor() -> float:
    """Return the CPU seconds of all child processes that have ended, including their descendants."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def table(rows: Sequence[tuple[str, float, float]], overhead: float, trials: int, workers: int) -> str:
    """Return the results as a Markdown page.

    Args:
        rows: (name of the method, wall-clock seconds, CPU seconds).
        overhead: seconds per trial that are not training, in a sweep with one worker.
        trials: number of trials of each method.
        workers: number of trials that run at the same time.

    Returns:
        The page.
    """
    processor = next((row for row in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in row), "")
    machine = f"{os.cpu_count()} × {processor.partition(': ')[2]}, Python {platform.python_version()}"
    lines = [f"| {name} | {took:.0f} | {spent:.0f} | {60 * trials / took:.1f} |" for name, took, spent in rows]
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return f"""# Sweeps: trials per minute

Written by `make bench-sweeps` on {time.strftime("%Y-%m-%d")}: {machine}; load {load} at the end. {about}

| {trials} trials, {workers} at once | wall s | CPU s | trials per minute |
|---|---|---|---|
{chr(10).join(lines)}

Overhead per trial, `shepherd sweep` with one worker: **{overhead:.2f} s** (goal: 1 s).
"""


def main() -> None:
    """Time all methods, one after another, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__)
    parser.add_argument("--zoo", type=os.path.abspath, help="Python of an environment with rl_zoo3")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    count = options.trials, options.workers
    with tempfile.TemporaryDirectory() as temporary:
        folder, name = Path(temporary), f"bench_{time.time_ns():x}"
        sweep(folder, f"{name}_warm", STEPS, 1, 1)  # creates databases and compiled steps
        overhead_of = folder / "sweeps" / f"{name}_tiny"
        sweep(folder, overhead_of.name, TINY, 12, 1)
        overhead = between_trials(overhead_of)
        print(f"overhead {overhead:.2f} s per trial", flush=True)
        ways = {
            "`shepherd sweep`": lambda: sweep(folder, name, STEPS, *count),
            "separate flow runs: `shepherd train`": lambda: flow_runs(folder, *count),
        }
        if options.zoo:
            ways["RL Zoo3, Stable-Baselines3"] = lambda: zoo(options.zoo, folder, *count)
        rows = []
        for way, run in ways.items():
            before, took = processor(), run()
            rows.append((way, took, processor() - before))
            print(f"{way}: {took:.0f} s", flush=True)
        page = table(rows, overhead, *count)
    print(page)
    if options.out:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
