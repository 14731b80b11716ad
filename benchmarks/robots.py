"""SAC, DroQ, CrossQ and SimBa on three robots, 50,000 steps each, by `shepherd compare`: docs/results/robots.md.

    python -m benchmarks.robots --only sac crossq --workers 1     trains what is not trained yet, and writes the page
    python -m benchmarks.robots --page                            the page alone, of what is trained

Three seeds and three robots of SAC or CrossQ take an hour or two of a processor, of SimBa five, of DroQ, with its
twenty gradient steps an action, fifteen. What is broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validate import LEAN, RESULTS, ROOT
from flows.sweeps.group_runs import group_of

ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ALGORITHMS = {"sac": "SAC", "crossq": "CrossQ", "simba": "SimBa", "droq": "DroQ"}
SEEDS, STEPS = 3, 50_000
SHEPHERD, RUNS = Path(sys.executable).with_name("shepherd"), "runs/robots"
INTRODUCTION = f"""\
# Model-free algorithms on robots

Made by `python -m benchmarks.robots`: the presets `sac_mujoco`, `crossq_mujoco`, `simba_mujoco` and `droq_mujoco`, as
far as they are trained, for {STEPS:,} steps on {SEEDS} seeds; drawn by `shepherd compare`. Thin lines are runs, thick
ones their interquartile mean, with its 95 % band, which is too narrow for {SEEDS} seeds
([why](../comparing.md#why-ten-seeds)): nothing is ranked here. Processor time is that of training alone.
"""


def words(algorithm: str) -> list[str]:
    """Overrides of the group that an algorithm's runs are."""
    several = [f"env.id={','.join(ROBOTS)}", f"seed={','.join(map(str, range(SEEDS)))}", f"group={algorithm}"]
    return [f"exp={algorithm}_mujoco", f"algo.total_steps={STEPS}", *several, *LEAN, f"log_root={RUNS}"]


def is_trained(algorithm: str) -> bool:
    """Tell whether all runs of an algorithm are done."""
    return all(training.state == "over" for training in group_of(words(algorithm)).trainings)


def write_page(algorithms: Sequence[str]) -> None:
    """Compare what is trained, and write the page with its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(SHEPHERD), "compare", *algorithms, "--runs", RUNS, "--out", folder]
        subprocess.run(command, cwd=ROOT, check=True)
        found = json.loads((Path(folder) / "compare.json").read_text())
        lines = [INTRODUCTION, f"Trained on {processors(algorithms)}.", "", *table(found), ""]
        for number, robot in enumerate(found["scales"], 1):
            lines += [f"## {robot}", ""]
            for stem, against in (("curve_steps", "policy steps"), ("curve_cpu", "processor seconds")):
                name = f"robots_{stem}_{number}.png"
                shutil.copy(Path(folder) / f"{stem}_{number}.png", RESULTS / name)
                lines += [f"![{robot}: return against {against}]({name})", ""]
    (RESULTS / "robots.md").write_text("\n".join(lines))


def processors(algorithms: Sequence[str]) -> str:
    """Processors that the runs were trained on, and how many on each."""
    runs = [each.run.read_summary() for name in algorithms for each in group_of(words(name)).trainings]
    counts = Counter(run["fingerprint"]["machine"]["device_name"] for run in runs)
    return ", ".join(f"{name} ({count} runs)" for name, count in counts.most_common())


def table(found: dict[str, Any]) -> list[str]:
    """Returns at the end, and what they cost."""
    rows = [
        "| robot | algorithm | last evaluation of each run's choice | their mean | processor minutes a seed |",
        "|---|---|---|---|---|",
    ]
    for robot in found["scales"]:
        for algorithm in found["sides"]:
            values, cost = found["sides"][algorithm]["values"][robot], found["cost"][robot][algorithm]
            returns = ", ".join(f"{value:,.0f}" for value in values)
            mean, minutes = sum(values) / len(values), cost["cpu_s"] / 60
            rows.append(f"| {robot} | {ALGORITHMS[algorithm]} | {returns} | {mean:,.0f} | {minutes:.0f} |")
    return rows


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--workers", type=int, default=1, help="trainings at once")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    for algorithm in () if options.page else options.only:
        command = [str(SHEPHERD), "train", *words(algorithm), "--workers", str(options.workers)]
        subprocess.run(command, cwd=ROOT, check=True)
    done = [algorithm for algorithm in ALGORITHMS if is_trained(algorithm)]
    if len(done) < 2:
        sys.exit(f"trained: {', '.join(done) or 'none'}; a comparison needs two")
    write_page(done)


if __name__ == "__main__":
    main()
