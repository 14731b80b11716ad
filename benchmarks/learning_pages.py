"""Pages about learning results, one per algorithm, generated from docs/results/learning.json (`make validate`).

In this file, a gate is a threshold that the returns of a preset's seeds must reach. `figures` are the results of one
preset in learning.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.compare import statistics
from flows.report.sentences import number

SHARE = 0.8  # fraction of the seeds that must reach a gate
BASE = "ppo_cartpole"  # baseline of the variants
TITLES = {"ppo_recurrent": "Recurrent PPO", "droq": "DroQ", "crossq": "CrossQ", "simba": "SimBa", "sac_ae": "SAC-AE"}
TITLES |= {f"dreamer_v{version}": f"Dreamer V{version.replace('_', '.')}" for version in ("1", "2", "3", "3_5")}
# Quantity of a gate (key of `benchmarks.validate.MEASURES`) -> text after its threshold, and before the seeds' values.
PHRASES = {
    "greedy": ("", ""),
    "training": (", best mean of ten consecutive training episodes", "best mean of ten consecutive training episodes "),
    "last_training": (", mean of the last 50 training returns", "mean of the last 50 training returns "),
    "evaluations": (", each of the last three evaluations", "lowest of the last three evaluations "),
    "gymnasium": (", in Gymnasium's environment", "in Gymnasium's environment "),
    "pictures": (" of the mean image's error, for reconstructions", "reconstruction error / error of the mean image "),
}
INTRODUCTION = """\
Written by `make validate`. Each preset is trained on several seeds. Unless a threshold names another quantity, the
*last* policy of each run plays 100 greedy episodes on seeds that are not used for training. Four of five seeds must
reach a threshold. Presets are tuned, thresholds are not. IQM: interquartile mean over seeds with its 95 % bootstrap
interval, which is too narrow for five seeds ([why](../comparing.md#why-ten-seeds)). Peers: RL Baselines3 Zoo (one
trained agent; at 300 k the mean of its last 25 training episodes), CleanRL (mean of three seeds), OpenAI's baselines
(six), Tianshou (ten)."""
SAMENESS = """\
CartPole-v1, the same seeds, 512 samples per update. *During training*: the mean of all greedy evaluations of a run,
which shows how early it learned. Differences are between the IQMs of a row and of the first row, with paired seeds."""


def write_pages(folder: Path) -> None:
    """Write `<algorithm>.md` into the folder for each algorithm that has results in the folder's learning.json."""
    figures, peers = json.loads((folder / "learning.json").read_text()), folder / "learning_peers.json"
    for name, peer_figures in (json.loads(peers.read_text()) if peers.exists() else {}).items():
        if name in figures:
            figures[name]["peer"] = peer_figures
    for algorithm in dict.fromkeys(of["algorithm"] for of in figures.values()):
        (folder / f"{algorithm}.md").write_text(page(algorithm, figures))


def count_reaching(gate: dict[str, Any]) -> int:
    """Return the number of seeds whose result reaches the threshold in `gate`, an entry of learning.json."""
    low, high = gate.get("at_least", gate.get("iqm_at_least", -math.inf)), gate.get("at_most", math.inf)
    return sum(low <= value <= high for value in gate["values"])


def mark(gate: dict[str, Any]) -> str:
    """Return the threshold in `gate` as text, for example "475" or "at most 0.1 of the mean image's error"."""
    if "iqm_at_least" in gate:
        return f"IQM at least the peer's {number(gate['iqm_at_least'])}{PHRASES[gate['of']][0]}"
    value = f"at most {number(gate['at_most'])}" if "at_most" in gate else number(gate["at_least"])
    return value + PHRASES[gate["of"]][0]


def passes(figures: dict[str, Any]) -> bool:
    """Return True if 80 % of a preset's seeds reach each threshold, and training did not exceed the CPU time limit."""
    in_time = figures.get("cpu_s", 0.0) <= (figures.get("within_s") or math.inf)
    return in_time and all(_is_reached(gate) for gate in figures["gates"])


def _is_reached(gate: dict[str, Any]) -> bool:
    if "iqm_at_least" in gate:
        return iqm(gate["values"]) >= gate["iqm_at_least"]
    return count_reaching(gate) >= SHARE * len(gate["values"])


def verdict(figures: dict[str, Any]) -> str:
    """Return, as text, how many seeds of a preset reach each threshold, and the CPU time if the preset limits it."""
    limit = figures.get("within_s")
    return ", ".join(
        f"{count_reaching(gate)} of {len(gate['values'])} seeds reach {mark(gate)} after {gate['policy_steps']:,} steps"
        for gate in figures["gates"]
    ) + (f", in {figures['cpu_s']:.0f} of {limit:.0f} CPU seconds" if limit else "")


def page(algorithm: str, figures: dict[str, Any]) -> str:
    """Return the Markdown page of an algorithm; `figures` maps the names of all presets to their results."""
    presets = {k: f for k, f in figures.items() if f["algorithm"] == algorithm and not f["variant"]}
    columns = ("preset", "environment", "policy steps", "threshold", "seeds that reach it", "IQM over seeds", "peers")
    title = TITLES.get(algorithm, algorithm.upper())
    lines = [f"# {title}: learning results of the presets", "", INTRODUCTION, "", *head(columns)]
    for of in presets.values():
        for gate in of["gates"]:
            shown = f"**{count_reaching(gate)} of {len(gate['values'])}**"
            limit = f", in {of['within_s']:.0f} CPU seconds" if of.get("within_s") else ""
            cells = [f"`{of['preset']}`", of["env"], f"{gate['policy_steps']:,}", mark(gate) + limit, shown]
            lines.append(row([*cells, interval(gate["values"]), of["about"]]))
    for name, of in presets.items():
        lines += ["", *section(name, of)]
    variants = {k: f for k, f in figures.items() if f["algorithm"] == algorithm and f["variant"]}
    if variants and BASE in presets:
        lines += ["", *sameness(presets[BASE], variants)]
    return "\n".join(lines) + "\n"


def section(name: str, of: dict[str, Any]) -> list[str]:
    """Return the lines of the Markdown section about a preset: command, return of each seed, learning curve."""
    source = f"{of['machine']}, {of['day']}, code and config {of['digest']}"
    by_seed = [
        f"{PHRASES[gate['of']][1]}after {gate['policy_steps']:,} steps {list_returns(gate['values'])}"
        for gate in of["gates"]
    ]
    return [
        f"## {of['env']}, {max(gate['policy_steps'] for gate in of['gates']):,} steps",
        "",
        f"`{of['command']}`",
        "",
        f"By seed: {'; '.join(by_seed)}. The policy that each run selected by its evaluations: "
        f"{list_returns(of['chosen'])}. Training took {of['cpu_s']:.0f} CPU seconds per seed ({source}).",
        "",
        f"![Return against training steps, each seed and their interquartile mean]({name}.png)",
        *(peer(of["peer"], of["gates"][0]) if "peer" in of else []),
    ]


def peer(figures: dict[str, Any], gate: dict[str, Any]) -> list[str]:
    """Return Markdown lines with the results of another library that was trained with a preset's hyperparameters."""
    return [
        "",
        f"{figures['who']} with the same hyperparameters: {PHRASES[gate['of']][1]}after {gate['policy_steps']:,} steps "
        f"{list_returns(figures['values'])}, {figures['cpu_s']:.0f} CPU seconds per seed ({figures['machine']}, "
        f"{figures['day']}). Command: `{figures['command']}`.",
    ]


def sameness(base: dict[str, Any], variants: dict[str, dict[str, Any]]) -> list[str]:
    """Return the section that compares a preset with its variants, which should learn equally well.

    A variant is the preset with other settings that should not affect the result, such as `algo.compile=true`.
    """
    columns = ("`exp=ppo`", "returns by seed", "IQM", "difference", "during training", "difference")
    lines = ["## Equal results with other settings", "", SAMENESS, "", *head(columns)]
    for of in (base, *variants.values()):
        cells = [of["about"] if of is not base else "4 environments × 128 rows, not compiled, no normalization"]
        ours, others = ([f["gates"][-1]["values"], f["while_training"]] for f in (of, base))
        cells.append(list_returns(ours[0]))
        for values, base_values in zip(ours, others, strict=True):
            cells += [interval(values), difference(values, base_values) if of is not base else ""]
        lines.append(row(cells))
    return lines


def head(columns: Sequence[str]) -> list[str]:
    """Return the header of a Markdown table: the line with the column names and the separator line."""
    return [row(columns), "|---" * len(columns) + "|"]


def row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def list_returns(values: Sequence[float]) -> str:
    """Return the values as rounded numbers, separated by commas."""
    return ", ".join(map(number, values))


def iqm(returns: Sequence[float]) -> float:
    """Return the interquartile mean over seeds."""
    return float(statistics.iqm([np.array(returns)]))


def interval(returns: Sequence[float]) -> str:
    """Return the interquartile mean (IQM) over seeds and its 95 % bootstrap interval as text."""
    return spell_interval(statistics.bootstrap([np.array(returns)], statistics.iqm, np.random.default_rng(0)))


def difference(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the difference of two interquartile means and its 95 % bootstrap interval as text."""
    rng, paired = np.random.default_rng(0), len(first) == len(second)
    return spell_interval(statistics.difference([np.array(first)], [np.array(second)], statistics.iqm, rng, paired))


def spell_interval(interval: statistics.Interval) -> str:
    """Return an estimate and the ends of its interval as text, for example "480 (455 to 500)"."""
    return f"{number(interval.value)} ({number(interval.low)} to {number(interval.high)})"
