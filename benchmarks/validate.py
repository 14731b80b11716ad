"""Whether the presets learn: each on five seeds, its last policy judged over 100 greedy episodes, against a gate.

    make validate                                   every preset and variant, docs/results/{ppo,a2c}.md
    make validate ARGS="--only ppo_cartpole"        one of them; the others' figures stay as they are

Runs are groups of `shepherd train` in runs/validate. A group's name ends in a digest of rlcore and of what its config
learns: what is done is not done again, what was broken off goes on, and after a change that may matter all is anew.
Figures are kept in docs/results/learning.json, from which the pages are written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from flows.compare import curves, pictures, statistics
from flows.compare.records import Record, from_directory
from flows.config.compose import compose
from flows.report.sentences import number
from flows.sweeps.group import group_of
from rlcore.errors import RunError
from rlcore.judge.final import evaluate_checkpoint
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.run_config import learning_half

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
KEPT = RESULTS / "learning.json"
EPISODES, SHARE = 100, 0.8  # of an evaluation; of the seeds that must reach a gate
QUICK = ("env.capture_video=false", "model_manager.disabled=true", "evaluation.baseline_episodes=10")
LEAN = (*QUICK, "metric.logger.name=none", "log_root=runs/validate")


@dataclass(frozen=True)
class Case:
    """A preset, or a variant of one, and the returns that count as learned: env steps (None: at the end) -> return."""

    overrides: str
    gates: dict[int | None, float]
    about: str = ""  # what peers reach with it; of a variant, what it is

    @property
    def algorithm(self) -> str:
        return self.overrides.removeprefix("exp=")[:3]


PRESETS = {
    "ppo_cartpole": Case("exp=ppo", {None: 475}, "500 at 100 k (Zoo), 490 at 500 k (CleanRL)"),
    "a2c_cartpole": Case("exp=a2c", {None: 450}, "500 at 500 k (Zoo)"),
    "ppo_pendulum": Case("exp=ppo_pendulum", {None: -250}, "-172 at 100 k (Zoo, with gSDE)"),
    "ppo_acrobot": Case("exp=ppo_acrobot", {None: -100}, "-73.5 at 1 M (Zoo), -86 at 500 k (CleanRL)"),
    "a2c_acrobot": Case("exp=a2c_acrobot", {None: -100}, "-83 at 500 k (Zoo)"),
    "ppo_inverted_double_pendulum": Case("exp=ppo_inverted_double_pendulum", {None: 0}, ""),
    "ppo_half_cheetah": Case("exp=ppo_half_cheetah", {None: 0}, ""),
    "ppo_lunar_lander": Case("exp=ppo_lunar_lander", {500_000: 100, None: 200}, "242 at 1 M (Zoo, v2)"),
}
# The same number of samples an update in each.
VARIANTS = {
    "ppo_compiled": Case("exp=ppo algo.compile=true", {None: 475}, "compiled"),
    "ppo_normalised": Case(
        "exp=ppo algo.normalize_obs=true algo.normalize_reward=true", {None: 475}, "observations and rewards normalised"
    ),
    "ppo_1_env": Case("exp=ppo env.num_envs=1 algo.rollout_steps=512", {None: 475}, "1 environment, rollouts of 512"),
    "ppo_8_envs": Case("exp=ppo env.num_envs=8 algo.rollout_steps=64", {None: 475}, "8 environments, rollouts of 64"),
}
CASES = PRESETS | VARIANTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=None, help="trainings at once; one a processor core")
    options = parser.parse_args()
    for name in options.only:
        figures = validated(name, CASES[name], range(options.seeds), options.workers)
        write_json(KEPT, kept() | {name: figures})
        write_pages(kept())
        print(f"{name}: {', '.join(verdicts(CASES[name], figures))}", flush=True)
    missed = [name for name in options.only if not passed(CASES[name], kept()[name])]
    sys.exit(f"below the mark: {', '.join(missed)}" if missed else 0)


def validated(name: str, case: Case, seeds: Sequence[int], workers: int | None) -> dict[str, Any]:
    """Train what is not trained yet, judge it and draw it."""
    words = [*case.overrides.split(), *LEAN]
    if len(case.gates) > 1:
        words.append("checkpoint.keep_last=null")
    config, _ = compose([*words, "seed=0"])
    words += [f"seed={','.join(map(str, seeds))}", f"group={name}-{digest(learning_half(config))}"]
    command = [str(Path(sys.executable).with_name("shepherd")), "train", *words]
    began = time.perf_counter()
    subprocess.run([*command, *(["--workers", str(workers)] if workers else [])], cwd=ROOT, check=True)
    print(f"{name}: trained in {time.perf_counter() - began:.0f} s", flush=True)
    runs = [training.run for training in group_of(words).trainings]
    records = [from_directory(run) for run in runs]
    if name in PRESETS:
        draw(name, records)
    at = {str(steps): [judged(run, steps) for run in runs] for steps in case.gates}
    cost = {key: float(np.median([record.effort[key] for record in records])) for key in ("cpu_s", "wall_s")}
    return {
        "command": shlex.join(["shepherd", "train", *case.overrides.split(), words[-2]]),
        "env": config.env.id,
        "steps": config.algo.total_steps,
        "returns": at,
        "chosen": [record.final for record in records],
        "while_training": [float(np.mean([value for _, value in record.evaluations])) for record in records],
        "commit": sorted({record.commit for record in records}),
        "machine": records[0].machine,
        "day": time.strftime("%Y-%m-%d"),
        **cost,
    }


def digest(learned: dict[str, Any]) -> str:
    """Of rlcore's code and of the half of a config that decides what is learned, the seed aside."""
    hashed = hashlib.sha256(json.dumps(learned | {"seed": None}, sort_keys=True).encode())
    for file in sorted((ROOT / "rlcore").rglob("*.py")):
        hashed.update(file.read_bytes())
    return hashed.hexdigest()[:8]


def judged(run: RunDirectory, steps: int | None) -> float:
    """Mean greedy return of the newest policy of at most so many env steps; where it was played, it is read."""
    found = (path for path in checkpoint.newest_first(run.checkpoints) if steps is None or int(path.name) <= steps)
    path = next(found, None)
    if path is None:
        raise RunError(f"{run.path}: no checkpoint of {steps} env steps")
    written = run.evaluations / f"last-{path.name}-{EPISODES}.json"
    if not written.exists():
        write_json(written, {"greedy": evaluate_checkpoint(run, path, EPISODES)})
    return json.loads(written.read_text())["greedy"]["mean"]


def draw(name: str, records: Sequence[Record]) -> None:
    """Returns against env steps: each run, the interquartile mean, its band."""
    both = {
        "greedy evaluations": [np.array(record.evaluations, dtype=float) for record in records],
        "training, sampled actions": [np.array(record.training, dtype=float) for record in records],
    }
    found = {what: curves.curve_of([[(x, y, False) for x, y in map(np.transpose, of)]]) for what, of in both.items()}
    drawn = {what: curve for what, curve in found.items() if curve is not None}
    with matplotlib.rc_context(pictures.STYLE):
        picture = pictures.curves_picture(drawn, name, records[0].task, "env steps", "return")
    (RESULTS / f"{name}.png").write_bytes(picture.png)


def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def reached(returns: Sequence[float], gate: float) -> int:
    return sum(value >= gate for value in returns)


def passed(case: Case, figures: dict[str, Any]) -> bool:
    counts = [(reached(returns, case.gates[key(at)]), len(returns)) for at, returns in figures["returns"].items()]
    return all(count >= SHARE * of for count, of in counts)


def key(at: str) -> int | None:
    return None if at == "None" else int(at)


def verdicts(case: Case, figures: dict[str, Any]) -> list[str]:
    """Of each gate: how many seeds reach it."""
    return [
        f"{reached(returns, case.gates[key(at)])} of {len(returns)} seeds at {number(case.gates[key(at)])} or above"
        f"{'' if key(at) is None else f' after {key(at):,} steps'}"
        for at, returns in figures["returns"].items()
    ]


# The pages ------------------------------------------------------------------------------------------------------------


def write_pages(figures: dict[str, Any]) -> None:
    for algorithm in ("ppo", "a2c"):
        names = [name for name in PRESETS if PRESETS[name].algorithm == algorithm and name in figures]
        lines = [*head(algorithm), *(line for name in names for line in row(PRESETS[name], figures[name]))]
        lines += ["", *(line for name in names for line in section(name, figures[name]))]
        if algorithm == "ppo" and "ppo_cartpole" in figures:
            lines += variants(figures)
        (RESULTS / f"{algorithm}.md").write_text("\n".join(lines).rstrip() + "\n")


def head(algorithm: str) -> list[str]:
    columns = ("preset", "environment", "env steps", "to reach", "seeds that do", "IQM of the seeds", "peers")
    return [
        f"# {algorithm.upper()}: what the presets reach",
        "",
        f"Made by `make validate`. Each preset is trained on several seeds; the *last* policy of each run plays "
        f"{EPISODES} greedy episodes on seeds of their own. IQM: interquartile mean over seeds, with its 95 % "
        "bootstrap interval (of five seeds too narrow, [comparing](../comparing.md#why-ten-seeds)). Gates are fixed; what "
        "peers have reached stands beside.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]


def row(case: Case, figures: dict[str, Any]) -> list[str]:
    return [
        f"| `{case.overrides}` | {figures['env']} | {key(at) or figures['steps']:,} | {number(case.gates[key(at)])} | "
        f"**{reached(returns, case.gates[key(at)])} of {len(returns)}** | {interval(returns)} | {case.about} |"
        for at, returns in figures["returns"].items()
    ]


def section(name: str, figures: dict[str, Any]) -> list[str]:
    each = {key(at): ", ".join(map(number, returns)) for at, returns in figures["returns"].items()}
    lines = [f"after {at:,} steps {text}" if at else f"at the end {text}" for at, text in each.items()]
    return [
        f"## {figures['env']}",
        "",
        f"`{figures['command']} group=NAME`",
        "",
        f"Returns by seed: {'; '.join(lines)}. The policy that each run chose by its evaluations: "
        f"{', '.join(number(value) for value in figures['chosen'])}. A run took {figures['cpu_s']:.0f} processor "
        f"seconds ({figures['machine']}; {figures['day']}, commit {', '.join(figures['commit'])}).",
        "",
        f"![Greedy return against env steps]({name}.png)",
        "",
    ]


def variants(figures: dict[str, Any]) -> list[str]:
    """The variants beside the preset; seeds are drawn in pairs."""
    columns = ("`exp=ppo`", "returns by seed", "IQM", "difference", "while training", "difference")
    lines = [
        "## The same, however it is computed",
        "",
        "CartPole-v1, the same seeds, 512 samples an update. *While training*: the mean of all greedy evaluations of a "
        "run, which says how early it learned. Differences are of IQMs, to the first row.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name in ("ppo_cartpole", *(name for name in VARIANTS if name in figures)):
        cells = ["4 environments, as written, no normaliser" if name == "ppo_cartpole" else VARIANTS[name].about]
        ours, base = ([f["returns"]["None"], f["while_training"]] for f in (figures[name], figures["ppo_cartpole"]))
        cells.append(", ".join(map(number, ours[0])))
        for values, others in zip(ours, base, strict=True):
            cells += [interval(values), difference(values, others) if name != "ppo_cartpole" else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def interval(returns: Sequence[float]) -> str:
    return spelled(statistics.bootstrapped([np.array(returns)], statistics.iqm, np.random.default_rng(0)))


def difference(first: Sequence[float], second: Sequence[float]) -> str:
    rng, paired = np.random.default_rng(0), len(first) == len(second)
    return spelled(statistics.difference([np.array(first)], [np.array(second)], statistics.iqm, rng, paired))


def spelled(found: statistics.Interval) -> str:
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"


if __name__ == "__main__":
    main()
