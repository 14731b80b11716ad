"""Comparison of SAC, DroQ, CrossQ and SimBa on three robots, 50,000 steps each (docs/results/robots.md).

    python -m benchmarks.robots --only sac crossq --workers 1     trains the missing runs and writes the page
    python -m benchmarks.robots --page                            writes the page only

Three seeds on three robots take one to two CPU hours with SAC or CrossQ, five with SimBa, and fifteen with DroQ, which
takes twenty gradient steps per action. Interrupted runs are resumed. Finished runs are stored in
docs/results/robots.json, so another machine trains only the remaining ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.validate import LEAN, RESULTS, ROOT
from flows.compare.gather import Side
from flows.compare.records import Record, from_directory
from flows.compare.report import write
from rlcore.store.directory import RunDirectory, write_text
from rlcore.store.series import CLOCKS, WHILE_TRAINING

ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ALGORITHMS = {"sac": "SAC", "crossq": "CrossQ", "simba": "SimBa", "droq": "DroQ"}
SEEDS, STEPS = range(3), 50_000
NAMING = ("algo.name", "algo.total_steps", "env.", "group", "seed")
Pair = tuple[str, str]  # algorithm, robot
SHEPHERD, RUNS, KEPT = Path(sys.executable).with_name("shepherd"), "runs/robots", RESULTS / "robots.json"
INTRODUCTION = f"""\
# Model-free algorithms on robots

Written by `python -m benchmarks.robots` with `shepherd compare`. The presets are `sac_mujoco`, `crossq_mujoco`,
`simba_mujoco` and `droq_mujoco`, trained for {STEPS:,} steps on {len(SEEDS)} seeds; presets without results are
omitted. Thin lines are runs, thick lines their interquartile mean with a 95 % band. For {len(SEEDS)} seeds the band is
too narrow ([why](../comparing.md#why-ten-seeds)), so this page ranks no algorithms. CPU time is that of training only.
"""


def train(algorithm: str, robot: str, seeds: Sequence[int], workers: int) -> None:
    """Train an algorithm on a robot; each seed is a separate run."""
    words = [f"exp={algorithm}_mujoco", f"env.id={robot}", f"algo.total_steps={STEPS}", f"group={algorithm}"]
    words += [f"seed={','.join(map(str, seeds))}", *LEAN, f"log_root={RUNS}"]
    subprocess.run([str(SHEPHERD), "train", *words, "--workers", str(workers)], cwd=ROOT, check=True)


def gather() -> dict[Pair, dict[int, Record]]:
    """Add this machine's finished runs to docs/results/robots.json, and return all finished runs in that file.

    The result maps (algorithm, robot) -> seed -> record of the run.
    """
    runs = [Record(**values) for values in json.loads(KEPT.read_text())] if KEPT.exists() else []
    runs += [thin(from_directory(run)) for run in RunDirectory.below(ROOT / RUNS)]
    records: dict[Pair, dict[int, Record]] = {pair: {} for pair in itertools.product(ALGORITHMS, ROBOTS)}
    for run in runs:
        if run.done:
            records[run.config["group"], run.task][run.seed] = run
    lines = [json.dumps(asdict(run)) for by_seed in records.values() for _, run in sorted(by_seed.items())]
    write_text(KEPT, "[\n" + ",\n".join(lines) + "\n]\n")
    return records


def thin(run: Record) -> Record:
    """Return a copy of a run's record with only the data that the page needs.

    These are the evaluations, the wall and CPU times at the steps of the evaluations, and the config keys that name the
    task.
    """
    steps = {step for step, _ in run.evaluations}
    kept = (WHILE_TRAINING["greedy"], *CLOCKS)
    lines = {name: [point for point in run.lines.get(name, ()) if point[0] in steps] for name in kept}
    config = {key: value for key, value in run.config.items() if key.startswith(NAMING)}
    return replace(run, config=config, lines=lines, place="")


def write_page(records: dict[Pair, dict[int, Record]]) -> None:
    """Write the page and its figures: for each robot, a comparison of the algorithms for which all seeds are finished.

    `records` is the result of `gather`: (algorithm, robot) -> seed -> record.
    """
    done = {pair: [*by_seed.values()] for pair, by_seed in records.items() if len(by_seed) == len(SEEDS)}
    lines = [INTRODUCTION, f"Trained on {processors(itertools.chain(*done.values()))}.", "", *table(done), ""]
    for number, robot in enumerate(ROBOTS, 1):
        sides = [Side(name, f"group {name}", name, done[name, robot]) for name in ALGORITHMS if (name, robot) in done]
        if len(sides) < 2:
            continue
        lines += [f"## {robot}", ""]
        with tempfile.TemporaryDirectory() as folder:
            write(sides, Path(folder))
            for stem, against in (("curve_steps", "policy steps"), ("curve_cpu", "CPU seconds")):
                name = f"robots_{stem}_{number}.png"
                shutil.copy(Path(folder) / f"{stem}.png", RESULTS / name)
                lines += [f"![{robot}: return against {against}]({name})", ""]
    (RESULTS / "robots.md").write_text("\n".join(lines))


def processors(runs: Iterable[Record]) -> str:
    """Return text that lists the CPU models on which the runs were trained, with the number of runs on each model."""
    counts = Counter(run.machine for run in runs)
    return ", ".join(f"{name} ({count} runs)" for name, count in counts.most_common())


def table(done: dict[Pair, list[Record]]) -> list[str]:
    """Return the lines of the Markdown table: robot, algorithm, final return of each run, mean, and CPU time."""
    rows = [
        "| robot | algorithm | final evaluation of each run's selected policy | mean | CPU minutes per seed |",
        "|---|---|---|---|---|",
    ]
    for robot, algorithm in itertools.product(ROBOTS, ALGORITHMS):
        if runs := done.get((algorithm, robot)):
            values = [run.final for run in runs if run.final is not None]
            minutes = [run.effort["cpu_s"] / 60 for run in runs]
            returns = ", ".join(f"{value:,.0f}" for value in values)
            means = f"{sum(values) / len(runs):,.0f} | {sum(minutes) / len(runs):.0f}"
            rows.append(f"| {robot} | {ALGORITHMS[algorithm]} | {returns} | {means} |")
    return rows


def main() -> None:
    """Train the missing runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--workers", type=int, default=1, help="number of concurrent trainings")
    parser.add_argument("--page", action="store_true", help="write the page without training")
    options = parser.parse_args()
    records = gather()
    for algorithm, robot in () if options.page else itertools.product(options.only, ROBOTS):
        if missing := [seed for seed in SEEDS if seed not in records[algorithm, robot]]:
            train(algorithm, robot, missing, options.workers)
            records = gather()
    write_page(records)


if __name__ == "__main__":
    main()
