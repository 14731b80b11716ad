"""Pages on learning, one an algorithm, from docs/results/learning.json: what `make validate` found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.compare import statistics
from flows.report.sentences import number

SHARE = 0.8  # of the seeds must reach a gate
BASE = "ppo_cartpole"  # what variants are compared with
TITLES = {"ppo_recurrent": "Recurrent PPO", "droq": "DroQ", "crossq": "CrossQ", "simba": "SimBa", "sac_ae": "SAC-AE"}
TITLES |= {f"dreamer_v{version}": f"Dreamer V{version}" for version in (1, 2, 3)}
# What a gate is of (names of `benchmarks.validate.MEASURES`) -> words behind its mark, and before the seeds' figures.
PHRASES = {
    "greedy": ("", ""),
    "training": (", best of ten episodes of training in a row", "best mean of ten episodes of training in a row "),
    "last_training": (", last fifty returns of training", "mean of the last fifty returns of training "),
    "evaluations": (", each of the last three evaluations", "lowest of the last three evaluations "),
    "pictures": (" of the error of the mean picture, by those told", "error of pictures told over the mean picture's "),
}
INTRODUCTION = """\
Made by `make validate`. Each preset is trained on several seeds; the *last* policy of each run plays 100 greedy
episodes on seeds of their own, unless a mark is of something else. Four of five seeds must reach a mark; presets are
tuned, marks are not. IQM: interquartile mean over seeds with its 95 % bootstrap interval, of five seeds too narrow
([why](../comparing.md#why-ten-seeds)). Peers: RL Baselines3 Zoo (one trained agent; at 300 k the mean of its last
25 training episodes), CleanRL (mean of three seeds), OpenAI's baselines (six), Tianshou (ten)."""
SAMENESS = """\
CartPole-v1, the same seeds, 512 samples an update. *While training*: the mean of all greedy evaluations of a run,
which says how early it learned. Differences are of IQMs, to the first row, seeds drawn in pairs."""


def write_pages(folder: Path) -> None:
    """Write the page of each algorithm that has figures anew."""
    figures, peers = json.loads((folder / "learning.json").read_text()), folder / "learning_peers.json"
    for name, beside in (json.loads(peers.read_text()) if peers.exists() else {}).items():
        if name in figures:
            figures[name]["beside"] = beside
    for algorithm in dict.fromkeys(of["algorithm"] for of in figures.values()):
        (folder / f"{algorithm}.md").write_text(page(algorithm, figures))


def count_reaching(gate: dict[str, Any]) -> int:
    """Number of seeds that reach a gate."""
    low, high = gate.get("at_least", gate.get("iqm_at_least", -math.inf)), gate.get("at_most", math.inf)
    return sum(low <= value <= high for value in gate["values"])


def mark(gate: dict[str, Any]) -> str:
    """A gate in a few words."""
    if "iqm_at_least" in gate:
        return f"{number(gate['iqm_at_least'])} in the IQM, as the peer{PHRASES[gate['of']][0]}"
    value = f"at most {number(gate['at_most'])}" if "at_most" in gate else number(gate["at_least"])
    return value + PHRASES[gate["of"]][0]


def passes(figures: dict[str, Any]) -> bool:
    """Tell whether every gate is reached by enough seeds, in the time that there is."""
    in_time = figures.get("cpu_s", 0.0) <= (figures.get("within_s") or math.inf)
    return in_time and all(_holds(gate) for gate in figures["gates"])


def _holds(gate: dict[str, Any]) -> bool:
    if "iqm_at_least" in gate:
        return iqm(gate["values"]) >= gate["iqm_at_least"]
    return count_reaching(gate) >= SHARE * len(gate["values"])


def verdict(figures: dict[str, Any]) -> str:
    """Sentence on how many seeds reach each gate."""
    limit = figures.get("within_s")
    return ", ".join(
        f"{count_reaching(gate)} of {len(gate['values'])} seeds reach {mark(gate)} after {gate['policy_steps']:,} steps"
        for gate in figures["gates"]
    ) + (f", in {figures['cpu_s']:.0f} of {limit:.0f} processor seconds" if limit else "")


def page(algorithm: str, figures: dict[str, Any]) -> str:
    """The page of an algorithm."""
    presets = {k: f for k, f in figures.items() if f["algorithm"] == algorithm and not f["variant"]}
    columns = ("preset", "environment", "policy steps", "mark", "seeds that reach it", "IQM of the seeds", "peers")
    title = TITLES.get(algorithm, algorithm.upper())
    lines = [f"# {title}: what the presets reach", "", INTRODUCTION, "", *head(columns)]
    for of in presets.values():
        for gate in of["gates"]:
            shown = f"**{count_reaching(gate)} of {len(gate['values'])}**"
            limit = f", in {of['within_s']:.0f} processor seconds" if of.get("within_s") else ""
            cells = [f"`{of['preset']}`", of["env"], f"{gate['policy_steps']:,}", mark(gate) + limit, shown]
            lines.append(row([*cells, interval(gate["values"]), of["about"]]))
    for name, of in presets.items():
        lines += ["", *section(name, of)]
    variants = {k: f for k, f in figures.items() if f["algorithm"] == algorithm and f["variant"]}
    if variants and BASE in presets:
        lines += ["", *sameness(presets[BASE], variants)]
    return "\n".join(lines) + "\n"


def section(name: str, of: dict[str, Any]) -> list[str]:
    """One preset: its command, the return of each seed, the picture."""
    where = f"{of['machine']}, {of['day']}, code and config {of['digest']}"
    by_seed = [
        f"{PHRASES[gate['of']][1]}after {gate['policy_steps']:,} steps {list_returns(gate['values'])}"
        for gate in of["gates"]
    ]
    return [
        f"## {of['env']}, {max(gate['policy_steps'] for gate in of['gates']):,} steps",
        "",
        f"`{of['command']}`",
        "",
        f"By seed: {'; '.join(by_seed)}. The policy that each run chose by its own evaluations: "
        f"{list_returns(of['chosen'])}. Training took {of['cpu_s']:.0f} processor seconds a seed ({where}).",
        "",
        f"![Return against steps of training, each seed and their interquartile mean]({name}.png)",
        *(peer(of["beside"], of["gates"][0]) if "beside" in of else []),
    ]


def peer(beside: dict[str, Any], gate: dict[str, Any]) -> list[str]:
    """Returns that another implementation reaches with the same numbers (`benchmarks.learning_peers`)."""
    return [
        "",
        f"{beside['who']} with the same numbers: {PHRASES[gate['of']][1]}after {gate['policy_steps']:,} steps "
        f"{list_returns(beside['values'])}, {beside['cpu_s']:.0f} processor seconds a seed ({beside['machine']}, "
        f"{beside['day']}), by `{beside['command']}`.",
    ]


def sameness(base: dict[str, Any], variants: dict[str, dict[str, Any]]) -> list[str]:
    """The variants beside the preset."""
    columns = ("`exp=ppo`", "returns by seed", "IQM", "difference", "while training", "difference")
    lines = ["## The same, however it is computed", "", SAMENESS, "", *head(columns)]
    for of in (base, *variants.values()):
        cells = [of["about"] if of is not base else "4 environments × 128 rows, not compiled, no normaliser"]
        ours, others = ([f["gates"][-1]["values"], f["while_training"]] for f in (of, base))
        cells.append(list_returns(ours[0]))
        for values, beside in zip(ours, others, strict=True):
            cells += [interval(values), difference(values, beside) if of is not base else ""]
        lines.append(row(cells))
    return lines


def head(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [row(columns), "|---" * len(columns) + "|"]


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def list_returns(values: Sequence[float]) -> str:
    """Returns, as a reader wants them."""
    return ", ".join(map(number, values))


def iqm(returns: Sequence[float]) -> float:
    """The interquartile mean of seeds."""
    return float(statistics.iqm([np.array(returns)]))


def interval(returns: Sequence[float]) -> str:
    """The IQM of seeds and its interval."""
    return spell_interval(statistics.bootstrap([np.array(returns)], statistics.iqm, np.random.default_rng(0)))


def difference(first: Sequence[float], second: Sequence[float]) -> str:
    """Of two IQMs, and its interval."""
    rng, paired = np.random.default_rng(0), len(first) == len(second)
    return spell_interval(statistics.difference([np.array(first)], [np.array(second)], statistics.iqm, rng, paired))


def spell_interval(found: statistics.Interval) -> str:
    """An estimate with the ends of its interval."""
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"
