"""SAC, DroQ, CrossQ and SimBa on three robots, 50,000 steps each, by `shepherd compare`: docs/results/robots.md.

    python -m benchmarks.robots --only sac crossq --workers 1     trains what is not trained yet, and writes the page
    python -m benchmarks.robots --page                            the page alone, of what is trained

Three seeds and three robots of SAC or CrossQ take an hour or two of a processor, of SimBa five, of DroQ, with its
twenty gradient steps an action, fifteen. What is broken off goes on; what is done is kept in docs/results/robots.json,
so that the next machine trains the rest.
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

Made by `python -m benchmarks.robots`: the presets `sac_mujoco`, `crossq_mujoco`, `simba_mujoco` and `droq_mujoco`, as
far as they are trained, for {STEPS:,} steps on {len(SEEDS)} seeds; drawn by `shepherd compare`. Thin lines are runs,
thick ones their interquartile mean, with its 95 % band, which is too narrow for {len(SEEDS)} seeds
([why](../comparing.md#why-ten-seeds)): nothing is ranked here. Processor time is that of training alone.
"""


def train(algorithm: str, robot: str, seeds: Sequence[int], workers: int) -> None:
    """Train an algorithm on a robot, a run a seed."""
    words = [f"exp={algorithm}_mujoco", f"env.id={robot}", f"algo.total_steps={STEPS}", f"group={algorithm}"]
    words += [f"seed={','.join(map(str, seeds))}", *LEAN, f"log_root={RUNS}"]
    subprocess.run([str(SHEPHERD), "train", *words, "--workers", str(workers)], cwd=ROOT, check=True)


def gather() -> dict[Pair, dict[int, Record]]:
    """Gather the runs that are done: those in `KEPT`, and this machine's, which join them; pair -> seed -> record."""
    runs = [Record(**values) for values in json.loads(KEPT.read_text())] if KEPT.exists() else []
    runs += [thin(from_directory(run)) for run in RunDirectory.below(ROOT / RUNS)]
    found: dict[Pair, dict[int, Record]] = {pair: {} for pair in itertools.product(ALGORITHMS, ROBOTS)}
    for run in runs:
        if run.done:
            found[run.config["group"], run.task][run.seed] = run
    lines = [json.dumps(asdict(run)) for of in found.values() for _, run in sorted(of.items())]
    write_text(KEPT, "[\n" + ",\n".join(lines) + "\n]\n")
    return found


def thin(run: Record) -> Record:
    """Record of what the page needs: the evaluations, the clocks at their steps, what names the run's task."""
    steps = {step for step, _ in run.evaluations}
    kept = (WHILE_TRAINING["greedy"], *CLOCKS)
    lines = {name: [point for point in run.lines.get(name, ()) if point[0] in steps] for name in kept}
    config = {key: value for key, value in run.config.items() if key.startswith(NAMING)}
    return replace(run, config=config, lines=lines, place="")


def write_page(found: dict[Pair, dict[int, Record]]) -> None:
    """Compare on each robot the algorithms of which all seeds are done, and write the page with its pictures."""
    done = {pair: [*of.values()] for pair, of in found.items() if len(of) == len(SEEDS)}
    lines = [INTRODUCTION, f"Trained on {processors(itertools.chain(*done.values()))}.", "", *table(done), ""]
    for number, robot in enumerate(ROBOTS, 1):
        sides = [Side(name, f"group {name}", name, done[name, robot]) for name in ALGORITHMS if (name, robot) in done]
        if len(sides) < 2:
            continue
        lines += [f"## {robot}", ""]
        with tempfile.TemporaryDirectory() as folder:
            write(sides, Path(folder))
            for stem, against in (("curve_steps", "policy steps"), ("curve_cpu", "processor seconds")):
                name = f"robots_{stem}_{number}.png"
                shutil.copy(Path(folder) / f"{stem}.png", RESULTS / name)
                lines += [f"![{robot}: return against {against}]({name})", ""]
    (RESULTS / "robots.md").write_text("\n".join(lines))


def processors(runs: Iterable[Record]) -> str:
    """Processors that the runs were trained on, and how many on each."""
    counts = Counter(run.machine for run in runs)
    return ", ".join(f"{name} ({count} runs)" for name, count in counts.most_common())


def table(done: dict[Pair, list[Record]]) -> list[str]:
    """Returns at the end, and what they cost."""
    rows = [
        "| robot | algorithm | last evaluation of each run's choice | their mean | processor minutes a seed |",
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
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--workers", type=int, default=1, help="trainings at once")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    found = gather()
    for algorithm, robot in () if options.page else itertools.product(options.only, ROBOTS):
        if missing := [seed for seed in SEEDS if seed not in found[algorithm, robot]]:
            train(algorithm, robot, missing, options.workers)
            found = gather()
    write_page(found)


if __name__ == "__main__":
    main()
