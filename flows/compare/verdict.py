"""Verdict of a comparison.

It states which side (group of runs) is better, or why sides are not ranked and which runs are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flows.compare.pairs import Pair
from flows.compare.result import ALL, Comparison
from flows.compare.selection import FEWEST
from flows.compare.statistics import Interval
from flows.report.sentences import number

NOBODY = "no side is significantly better than every other"
MOST, MOST_TOLD = 3, 12  # maximal number of environments in the headline, and of sentences about single environments
GAP = "optimality_gap"
NAMES = {"iqm": "interquartile mean", "mean": "mean", "median": "median", GAP: "optimality gap"}
WHY_TEN = (
    f"A ranking needs at least {FEWEST} seeds on each side: with three seeds, a 95 % interval contains the true value "
    "in only about 75 % of studies, with ten seeds in about 94 % (docs/comparing.md)."
)


class Verdict(NamedTuple):
    """Verdict of a comparison.

    Attributes:
        ranked: True if sides were ranked.
        best: name of the side (group of runs) that is significantly better than every other side, or None.
        headline: the result in one sentence.
        sentences: sentences with the numbers that support the result, or with the reasons why sides were not ranked.
        commands: command lines that train or resume the runs that a ranking needs.
    """

    ranked: bool
    best: str | None
    headline: str
    sentences: list[str]
    commands: list[str]


def verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of a comparison."""
    chosen = comparison.selection
    if chosen.obstacles:
        few = any(len({r.seed for r in runs}) < FEWEST for of in chosen.counted.values() for runs in of.values())
        reasons = [*chosen.obstacles[1:], *([WHY_TEN] if few else [])]  # the first is the headline
        seen = [f"So far: {_figures(comparison, pair)}." for pair in comparison.pairs]
        rest = len(chosen.obstacles) - 1
        listed = f"{rest} more {'reason is' if rest == 1 else 'reasons are'} listed below and on the page"
        more = f" ({listed})" if rest else ""
        headline = f"No ranking of {_list_names(list(chosen.counted))}: {chosen.obstacles[0].rstrip('.')}{more}."
        return Verdict(False, None, headline, [*reasons, *seen], chosen.commands)
    each = [(task, pair) for task, pairs in comparison.by_task.items() for pair in pairs]
    shown = each if len(each) <= MOST_TOLD else [one for one in each if one[1].better]  # compare.json has all
    sentences = [_sentence(comparison, pair, task) for task, pair in shown]
    if each:
        sentences.append(_together(comparison.task_level, f"all {len(each)} of single environments"))
    sentences += [_sentence(comparison, pair) for pair in comparison.pairs]
    if len(comparison.pairs) > 1:
        sentences.append(
            _together(comparison.level, f"all {len(comparison.pairs)}{' of the whole' if comparison.by_task else ''}")
        )
    return Verdict(True, _best(list(chosen.counted), comparison.pairs), _headline(comparison), sentences, [])


def _together(level: float, which: str) -> str:
    return f"Each of these intervals has level {level:.1%}, so that {which} together have level 95 %."


def _best(names: Sequence[str], pairs: Sequence[Pair]) -> str | None:
    return next((n for n in names if all(p.better == n for p in pairs if n in (p.first, p.second))), None)


def _headline(comparison: Comparison) -> str:
    """Return a sentence with the result over all environments.

    If the result on a single environment differs, the sentence begins with this environment.
    """
    names = list(comparison.selection.counted)
    other = [
        _clause(names, pairs, f" on {task}")
        for task, pairs in comparison.by_task.items()
        if any(pair.better not in (None, all_.better) for pair, all_ in zip(pairs, comparison.pairs, strict=True))
    ]
    rest = len(other) - MOST
    more = [f"{rest} more {'environment differs' if rest == 1 else 'environments differ'}"] if rest > 0 else []
    said = "; ".join([*other[:MOST], *more, _clause(names, comparison.pairs, _where(comparison))])
    return f"{'N' + said[1:] if said.startswith(NOBODY) else said}."


def _clause(names: Sequence[str], pairs: Sequence[Pair], where: str) -> str:
    best = _best(names, pairs)
    if best is not None:
        return f"{best} is significantly better than {_list_names([name for name in names if name != best])}{where}"
    found = [(p.better, p.second if p.better == p.first else p.first) for p in pairs if p.better]
    if not found:
        return f"{_list_names(names)} do not differ significantly{where}"
    return f"{NOBODY}{where}; {'; '.join(f'{a} is significantly better than {b}' for a, b in found)}"


def _sentence(comparison: Comparison, pair: Pair, task: str | None = None) -> str:
    """Return a sentence that compares two sides (groups of runs) with numbers.

    The numbers are those on the environment `task`, or over all environments if `task` is None.
    """
    noise, several = f"{'a' if pair.better else 'no'} significant difference", len(comparison.pairs) > 1
    of = [f"on {task}"] if task else ["over all environments"] if comparison.by_task else []
    start = ", ".join([*([f"{pair.first} and {pair.second}"] if several else []), *of, noise])
    counted = [comparison.selection.counted[name] for name in (pair.first, pair.second)]
    counts = [len(runs[task]) if task else sum(map(len, runs.values())) for runs in counted]
    by = f"{counts[0]} runs each" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]} runs"
    figures = f"{_figures(comparison, pair, task)} ({by}{', in pairs of the same seed' if pair.paired else ''})."
    words = f"{start}: {figures}" if several or of else figures
    return words if several else words[0].upper() + words[1:]


def _figures(comparison: Comparison, pair: Pair, task: str | None = None) -> str:
    """Return a text with the numbers that compare two sides (groups of runs).

    They are the probability of improvement, the interquartile means and their difference. The side with the higher
    interquartile mean comes first.
    """
    pair = pair.upright()
    first, second = pair.first, pair.second
    place = task or (ALL if len(comparison.tasks) > 1 else comparison.tasks[0])
    unit, spell = ("score", share) if place == ALL else (comparison.measure.quantity.words, spell_figure)
    iqm = [spell(comparison.aggregates[place][name]["iqm"]) for name in (first, second)]
    return (
        f"a run of {first} is better than a run of {second} with probability {share(pair.improvement)}; interquartile "
        f"mean {unit} {iqm[0]} and {iqm[1]}, difference {spell(pair.difference)}"
    )


def spell_figure(figure: Interval) -> str:
    """Format a return with its interval, e.g. 493 [480, 500]."""
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def share(figure: Interval) -> str:
    """Format a fraction, probability or score with its interval."""
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _where(comparison: Comparison) -> str:
    return f" on {comparison.tasks[0]}" if len(comparison.tasks) == 1 else f" over {len(comparison.tasks)} environments"


def _list_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return a table of the aggregates with their intervals: the column titles, and the rows.

    Rows over all environments come first.
    """
    rows = []
    for task, sides in sorted(comparison.aggregates.items(), key=lambda item: item[0] != ALL):
        for side, figures in sides.items():
            in_scores = task == ALL
            cells = [share(f) if in_scores or name == GAP else spell_figure(f) for name, f in figures.items()]
            rows.append([f"{task} (scores)" if in_scores else task, side, *cells])
    return ["environment", "side", *NAMES.values()], rows


def as_markdown(comparison: Comparison, conclusion: Verdict) -> str:
    """Return the verdict and the aggregates as Markdown, for Prefect's page of a flow run."""
    head, rows = table(comparison)
    lines = [
        f"## {conclusion.headline}",
        "",
        *(f"- {sentence}" for sentence in [*conclusion.sentences, *comparison.notes]),
    ]
    lines += [f"- `{command}`" for command in conclusion.commands]
    lines += ["", f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def as_json(comparison: Comparison, conclusion: Verdict) -> dict[str, Any]:
    """Return the content of compare.json: the comparison and its verdict, as values that JSON can represent."""
    chosen = comparison.selection
    return {
        "verdict": conclusion._asdict(),
        "value": comparison.measure.words,
        "metric": comparison.measure.quantity.words,
        "sides": {
            side.name: {
                "source": side.source,
                "runs": len(side.records),
                "seeds": {task: [r.seed for r in chosen.counted[side.name][task]] for task in comparison.tasks},
                "values": {task: comparison.values[side.name][task].tolist() for task in comparison.tasks},
                "left_out": {r.place: why for name, r, why in chosen.left_out if name == side.name},
            }
            for side in comparison.sides
        },
        "scales": {t: {"0": s.low, "1": s.high, "words": s.words} for t, s in comparison.scales.items()},
        "aggregates": {
            task: {side: {name: _plain(f) for name, f in figures.items()} for side, figures in of.items()}
            for task, of in comparison.aggregates.items()
        },
        "pairs": [_pair(pair, conclusion.ranked, comparison.level) for pair in comparison.pairs],
        "environments": {
            task: [_pair(pair, conclusion.ranked, comparison.task_level) for pair in pairs]
            for task, pairs in comparison.by_task.items()
        },
        "steps_to_threshold": {
            task: {"threshold": comparison.thresholds[task]} | comparison.threshold_steps[task]
            for task in comparison.tasks
        },
        "cost": comparison.cost,
        "config": comparison.config,
        "notes": comparison.notes,
    }


def _pair(pair: Pair, ranked: bool, level: float) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "difference": _plain(pair.difference),
        "probability_of_improvement": _plain(pair.improvement),
        "paired": pair.paired,
        "correlation": pair.correlation,
        "better": pair.better if ranked else None,
        "level": level,
    }


def _plain(figure: Interval) -> dict[str, float]:
    return {name: float(part) for name, part in figure._asdict().items()}
