"""Plan2Explore: novelty of unseen states, coverage, and fine-tuning compared with training from scratch.

    python -m benchmarks.exploration                           # writes docs/results/p2e.md
    python -m benchmarks.exploration --only disagreement       # one of the two parts

Part `disagreement`: in a maze, each Dreamer and its ensemble learn from random actions; the ensemble must disagree more
about cells that were not visited (`benchmarks.rooms`). Part `runs`: a run explores point_mass without its reward, and a
second run learns the task from it; each is compared with a run without Plan2Explore. The runs are in runs/validate.
Finished runs are reused and interrupted runs are resumed, as in `benchmarks.validate`. `make validate` runs this
program.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import difference_interval, spell_mean
from benchmarks.learning_pages import SHARE, spell_interval
from benchmarks.rooms import Rooms, explore_rooms
from benchmarks.validate import LEAN, RUNS, digest, greedy_return
from flows.config.compose import compose
from rlcore.config.learning_half import learning_half
from rlcore.evaluation.datasets import read_rows
from rlcore.spec import EnvSpec
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.train.build import build

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
DREAMERS = {"1": "V1", "2": "V2", "3": "V3", "3_5": "V3.5"}
MAZE_STEPS, MAZE = 2_400, ("algo.replay_ratio=0.25",)
MEDIAN, LOWEST, HALF = 0.6, 0.5, 0.5  # thresholds of the AUROC: median over seeds, each seed; of the loss ratio
CELLS, LIMITS = 6, np.array([1.5, 1.5, 1.0, 1.0])  # cells for each number of a state; largest position and velocity
EXPLORE = "exp=p2e_dv3_exploration_point_mass algo.critics_exploration.extrinsic.weight=0"
WORDS = {
    "exploration": EXPLORE,
    "random": f"{EXPLORE} algo.learning_starts=3999",  # actions are random until then, of 4,000 steps
    "finetuning": "exp=p2e_dv3_finetuning_point_mass",
    "scratch": "exp=dreamer_v3_point_mass algo.total_steps=2000 algo.learning_starts=300",
}


def probe(version: str, seed: int, steps: int = MAZE_STEPS, words: Sequence[str] = MAZE) -> dict[str, float]:
    """Train a Dreamer and its ensemble on random actions in a maze.

    Args:
        version: key of `DREAMERS`.
        seed: seed of the run.
        steps: number of policy steps.
        words: overrides of the preset `p2e_dv…_exploration_point_mass`.

    Returns:
        "auroc": probability that the ensemble disagrees more about a cell that was not visited than about a visited
        one. "loss": mean of the last ten losses of the ensemble, divided by that of the first ten, without the constant
        that a normal distribution adds.
    """
    algo = compose([f"exp=p2e_dv{version}_exploration_point_mass", *words])[0].algo
    trainer = build(algo, Rooms, num_envs=1, seed=seed, config={"buffer": {"size": steps, "memmap": False}})
    auroc, losses = explore_rooms(trainer, steps)
    return {"auroc": auroc, "loss": float(np.mean(losses[-10:]) / np.mean(losses[:10]))}


def train(name: str, seed: int, *more: str) -> RunDirectory:
    """Train a run with the overrides `WORDS[name]` and `more`, unless it is finished; return its directory."""
    words = [*WORDS[name].split(), *LEAN, "num_threads=1"]
    run = RunDirectory(ROOT / RUNS / f"p2e_{name}-{digest(learning_half(compose(words)[0]))}-{seed}")
    if run.config.exists():
        command = ["resume", str(run.path)]
    else:
        command = ["train", *words, f"seed={seed}", f"run_dir={run.path}", *more]
    subprocess.run([str(Path(sys.executable).with_name("shepherd")), *command], cwd=ROOT, check=True)
    return run


def coverage(states: np.ndarray) -> int:
    """Return the number of visited cells; states [N, 4] have two positions and two velocities of point_mass."""
    cells = np.floor((states / LIMITS + 1) / 2 * CELLS).clip(0, CELLS - 1)
    return len(np.unique(cells, axis=0))


def visited(run: RunDirectory) -> int:
    """Return the coverage of all rows of a run, which are in the replay buffer of its newest checkpoint."""
    rows = read_rows(str(run.path), EnvSpec.from_json(run.read_card()["spec"]), config_of(run).env)
    return coverage(rows["obs", "state"].flatten(0, 1).numpy())


def measure(seed: int) -> dict[str, float]:
    """Train the four runs of a seed; return cells visited and greedy returns."""
    exploring, chance, scratch = (train(name, seed) for name in ("exploration", "random", "scratch"))
    source = f"checkpoint.exploration_ckpt_path={exploring.path}"
    tuned = train("finetuning", seed, source, "buffer.load_from_exploration=true")
    found: dict[str, float] = {"explored": visited(exploring), "random": visited(chance)}
    for name, run in (("tuned", tuned), ("scratch", scratch)):
        found[name] = greedy_return(run, config_of(run).algo.step_limit)
    return found


HEAD = """# Plan2Explore: exploration and fine-tuning

Written by `python -m benchmarks.exploration`, which `make validate` runs. Means over seeds with their 95 % confidence
intervals (Student's t; Welch's t for differences).
"""
MAZE_TEXT = f"""
## Does the ensemble disagree about unseen states?

A maze of three rooms ([rooms.py](../../benchmarks/rooms.py)), {MAZE_STEPS:,} random actions, `{shlex.join(MAZE)}`.
AUROC: probability that the ensemble disagrees more about a cell that was not visited than about a visited one. Loss:
mean of the last ten losses of the ensemble, divided by that of the first ten, both less the constant of the normal
distribution. Thresholds: median AUROC at least {MEDIAN}, each at least {LOWEST}, each loss below {HALF}.

| Dreamer | seeds | median AUROC | AUROC of each seed | loss of each seed | reached |
|---|---|---|---|---|---|
"""
RUNS_TEXT = f"""
## Coverage and fine-tuning on point_mass

Exploration: `{EXPLORE}`, 4,000 policy steps. Coverage: number of cells of the state space that were visited, of
{CELLS**4:,} ({CELLS} for each of two positions and two velocities). Fine-tuning: `{WORDS["finetuning"]}`, 2,000 policy
steps from this run and its replay buffer. From scratch: `{WORDS["scratch"]}`, the same networks and settings. Returns:
100 greedy episodes of the last policy, on seeds that are not used for training.

| | Plan2Explore | without | difference | seeds with more |
|---|---|---|---|---|
"""


def page(results: Mapping[str, Any]) -> str:
    """Return the page as Markdown; `results` are those of p2e.json."""
    lines = [HEAD]
    if found := results.get("disagreement"):
        lines.append(MAZE_TEXT)
        for version, seeds in found.items():
            auroc, losses = ([seed[key] for seed in seeds] for key in ("auroc", "loss"))
            reached = statistics.median(auroc) >= MEDIAN and min(auroc) >= LOWEST and max(losses) < HALF
            each = (", ".join(f"{value:.2f}" for value in values) for values in (auroc, losses))
            cells = (
                DREAMERS[version],
                len(seeds),
                f"{statistics.median(auroc):.2f}",
                *each,
                "yes" if reached else "no",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |\n")
    if seeds := results.get("runs"):
        lines.append(RUNS_TEXT)
        for title, one, two in (
            ("cells visited; without: random policy", "explored", "random"),
            ("return after fine-tuning; without: from scratch", "tuned", "scratch"),
        ):
            ours, theirs = ([seed[name] for seed in seeds] for name in (one, two))
            more = sum(mine > other for mine, other in zip(ours, theirs, strict=True))
            count = f"{more} of {len(seeds)}"
            if one == "explored":
                count += f" ({'reached' if more >= SHARE * len(seeds) else 'missed'}: {SHARE:.0%})"
            cells = (
                title,
                spell_mean(ours),
                spell_mean(theirs),
                spell_interval(difference_interval(ours, theirs)),
                count,
            )
            lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def main() -> None:
    """Measure the parts, and write p2e.json and p2e.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("disagreement", "runs")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts, help="parts; the results of others are kept")
    parser.add_argument("--dreamers", nargs="*", choices=DREAMERS, default=list(DREAMERS), help="of disagreement")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, at least 2")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of p2e.json and p2e.md")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: must be at least 2, because an interval needs two seeds")
    kept, seeds = options.results / "p2e.json", range(options.seeds)
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}

    def keep() -> None:
        write_json(kept, results)
        (options.results / "p2e.md").write_text(page(results))

    for version in options.dreamers if "disagreement" in options.only else ():
        found = results.get("disagreement", {}) | {version: [probe(version, seed) for seed in seeds]}
        results["disagreement"] = {known: found[known] for known in DREAMERS if known in found}
        keep()
        print(f"disagreement, Dreamer {DREAMERS[version]}: {found[version]}", flush=True)
    if "runs" in options.only:
        results["runs"] = [measure(seed) for seed in seeds]
        keep()
        print(f"runs: {results['runs']}", flush=True)


if __name__ == "__main__":
    main()
