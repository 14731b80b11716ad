"""Learning on the examples of rl8 1.0.0, compared with rl8, with equal settings and numbers of updates.

    make validate-rl8       # installs rl8 in .shepherd/rl8, writes docs/results/learning_rl8.md
    python -m benchmarks.learning_rl8 --rl8 VENV/bin/python --examples FOLDER --only cartpole --seeds 3

The tasks are rl8's examples cartpole, mountain_car and pendulum with their horizons and numbers of updates, and its two
dummy environments. There are 1,024 environments instead of 8,192, and networks 64-64 instead of 256-256, so that a seed
takes about a minute. Both libraries train with one thread, one after the other. After training, each plays 1,024 greedy
episodes in its own environments. Seeds that are in learning_rl8.json are not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.batched import SCRIPT, Task, rl8
from benchmarks.intervals import difference_interval, spell_mean
from benchmarks.learning_pages import spell_interval
from benchmarks.peers import RESULTS, ours
from rlcore.store.directory import write_json

ENVS = 1024
HIDDEN = 64


def example(name: str, rows: int, updates: int, horizons: int = 1) -> Task:
    """Return the task of one of rl8's examples.

    Args:
        name: name of the example or dummy environment.
        rows: time steps of a rollout, rl8's horizon.
        updates: number of rollouts, each of which is followed by an update.
        horizons: number of rollouts between two resets of the environments.

    Returns:
        The task. A batch is a whole rollout, as in rl8's examples.
    """
    return Task(
        f"{rows} steps, {updates} updates" + (f", reset after {horizons} rollouts" if horizons > 1 else ""),
        f"batched/rl8-{name}",
        name,
        ENVS,
        rows,
        ENVS * rows * updates,
        ("algo.per_rank_batch_size=null", f"algo.dense_units={HIDDEN}"),
        {"model_config": {"hiddens": [HIDDEN, HIDDEN]}},
        horizons=horizons,
    )


TASKS = {
    "cartpole": example("cartpole", 64, 40),
    "mountain_car": example("mountain_car", 128, 40, horizons=4),
    "pendulum": example("pendulum", 128, 100, horizons=4),
    "discrete_dummy": example("discrete_dummy", 32, 40),
    "continuous_dummy": example("continuous_dummy", 32, 40),
}

HEAD = f"""# Learning on rl8's examples, compared with rl8

Written by `make validate-rl8`. {ENVS:,} environments, networks {HIDDEN}-{HIDDEN}, one batch per rollout, 4 epochs; all
other settings are rl8's defaults. The numbers of steps and updates are those of rl8's examples. Returns are means over
seeds of {ENVS:,} greedy episodes after the last update, with the 95 % confidence interval over seeds (Student's t); an
episode lasts from one reset to the next. The interval of the difference is Welch's. *Not below*: this interval does not
lie below 0. CPU seconds are medians. Those of Shepherd include about 30 s for compiling, unless an earlier run did it.

| task | settings | seeds | Shepherd | rl8 1.0.0 | difference | not below | CPU s, Shepherd | CPU s, rl8 |
|---|---|---|---|---|---|---|---|---|
"""


def line(name: str, task: Task, seeds: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the row of a task in the table; `seeds` is seed -> library -> figures."""
    returns, cpu = (
        {who: [figures[who][key] for figures in seeds.values()] for who in ("Shepherd", "rl8")}
        for key in ("return", "cpu")
    )
    difference = difference_interval(returns["Shepherd"], returns["rl8"])
    cells = [
        name,
        task.about,
        str(len(seeds)),
        spell_mean(returns["Shepherd"]),
        spell_mean(returns["rl8"]),
        spell_interval(difference),
        "yes" if difference.high >= 0 else "**no**",
        *(f"{statistics.median(cpu[who]):.0f}" for who in ("Shepherd", "rl8")),
    ]
    return f"| {' | '.join(cells)} |\n"


def page(results: dict[str, Any]) -> str:
    """Return the page as Markdown, with the tasks that have results of at least two seeds."""
    ready = [name for name in TASKS if len(results.get(name, {}).get("seeds", {})) > 1]
    rows = [line(name, TASKS[name], results[name]["seeds"]) for name in ready]
    days = sorted({results[name]["day"] for name in ready})
    return HEAD + "".join(rows) + f"\nTrained until {days[-1]}.\n"


def main() -> None:
    """Train the seeds that have no result yet, and write learning_rl8.json and learning_rl8.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rl8", required=True, type=os.path.abspath, help="Python of an environment with rl8")
    parser.add_argument("--examples", required=True, type=os.path.abspath, help="folder examples of rl8's source")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS), help="tasks; other rows are kept")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, at least 2")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of learning_rl8.json and .md")
    arguments = parser.parse_args()
    kept = arguments.results / "learning_rl8.json"
    with tempfile.TemporaryDirectory(prefix="shepherd-rl8-") as name:
        folder = Path(name)
        (folder / "rl8_train.py").write_text(SCRIPT)
        for seed in range(arguments.seeds):
            for key in arguments.only:
                results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
                if str(seed) in results.setdefault(key, {"seeds": {}})["seeds"]:
                    continue
                figures = {
                    "Shepherd": ours(TASKS[key].protocol(), seed, folder, episodes=ENVS),
                    "rl8": rl8(TASKS[key], seed, folder, arguments.rl8, arguments.examples),
                }
                print(f"{key}, seed {seed}:", figures, flush=True)
                results[key]["seeds"][str(seed)] = figures
                results[key]["day"] = time.strftime("%Y-%m-%d")
                write_json(kept, {known: results[known] for known in TASKS if known in results})
                if any(len(of["seeds"]) > 1 for of in results.values()):  # an interval needs two seeds
                    (arguments.results / "learning_rl8.md").write_text(page(results))


if __name__ == "__main__":
    main()
