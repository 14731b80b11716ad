"""HTML page of a comparison: one file without scripts and network access."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from flows.compare.result import Comparison
from flows.compare.statistics import LEVEL, REPLICATES
from flows.compare.verdict import Verdict, table
from flows.report.figures import Picture
from flows.report.html import document, figures, section
from flows.report.html import table as html_table
from flows.report.sentences import duration, number


def page(comparison: Comparison, conclusion: Verdict, pictures: Sequence[Picture]) -> str:
    """Return the page of a comparison as HTML; text that comes from runs or from the command line is escaped."""
    names = list(comparison.selection.counted)
    title = f"{names[0]} compared with {' and '.join(names[1:])}"
    return document(title, f"<h1>{escape(title)}</h1>", sections(comparison, conclusion, pictures))


def sections(comparison: Comparison, conclusion: Verdict, pictures: Sequence[Picture]) -> str:
    """Return the content of the page without title and HTML head, to be included in another page."""
    parts = [
        f'<p class="soft">{escape(_about(comparison))}</p>',
        _verdict(conclusion),
        _notes(comparison),
        section("Learning curves", _curves(comparison, pictures)),
        section(
            "Results after training", _ends(comparison), figures(p for p in pictures if not p.stem.startswith("curve"))
        ),
        section("Steps to a threshold", _threshold_steps(comparison)),
        section("Cost of a run", _cost(comparison)),
        section("Differences of the configurations", _config(comparison)),
        section("Runs", _runs(comparison)),
        section("Method", _method(comparison)),
    ]
    return "".join(parts)


def _about(comparison: Comparison) -> str:
    counts = [sum(len(runs) for runs in of.values()) for of in comparison.selection.counted.values()]
    runs = f"{' + '.join(map(str, counts))} finished runs"
    return f"{', '.join(comparison.tasks)} · {runs} · value of a run: {comparison.measure.words}"


def _verdict(conclusion: Verdict) -> str:
    reasons = "".join(f"<li>{escape(sentence)}</li>" for sentence in conclusion.sentences)
    commands = "\n".join(escape(command) for command in conclusion.commands)
    settle = f"<p>Commands that provide the missing runs:</p><pre>{commands}</pre>" if commands else ""
    kind = "verdict ranked" if conclusion.ranked else "verdict"
    return f'<div class="{kind}"><strong>{escape(conclusion.headline)}</strong><ul>{reasons}</ul>{settle}</div>\n'


def _notes(comparison: Comparison) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    return f"<p>Notes:</p><ul>{notes}</ul>\n" if notes else ""


def _curves(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    words = f"{comparison.measure.curve_words}: interquartile mean over seeds with its 95 % bootstrap band; "
    words += (
        "thin lines are runs."
        " Times are training times without evaluations and checkpoints. Processor time includes the environments'"
        " worker processes. After the end of a run, its last value is used."
    )
    for stem, what in (("curve_time", "wall time"), ("curve_cpu", "processor time")):
        if not any(p.stem.startswith(stem) for p in pictures):
            words += f" There is no curve by {what}, because some runs have not recorded it."
    every = [p for p in pictures if p.stem == "curve_all"]
    each = [p for p in pictures if p.stem.startswith(("curve_steps", "curve_time", "curve_cpu"))]
    about = f'<p class="soft">{escape(words[0].upper() + words[1:])}</p>\n'
    return about + "".join(figures(some) for some in (every, each) if some)


def _ends(comparison: Comparison) -> str:
    head, rows = table(comparison)
    rows = [[escape(task), _side(comparison, side), *cells] for task, side, *cells in rows]
    scales = "; ".join(f"{task}: {scale.words}" for task, scale in comparison.scales.items())
    words = (
        f"Values with 95 % intervals; the optimality gap and rows of all environments are normalized scores. {scales}."
    )
    return html_table(head, rows, set(head[2:])) + f'<p class="soft">{escape(words)}</p>\n'


def _threshold_steps(comparison: Comparison) -> str:
    rows = []
    for task, sides in comparison.threshold_steps.items():
        for side, steps in sides.items():
            there = sorted(step for step in steps if step is not None)
            middle = median([step if step is not None else float("inf") for step in steps])
            cells = [
                f"{len(there)} of {len(steps)}",
                f"{middle:,.0f}" if middle < float("inf") else "not reached by half",
            ]
            cells += [f"{there[0]:,}", f"{there[-1]:,}"] if there else ["–", "–"]
            rows.append([escape(task), f"{number(comparison.thresholds[task])}", _side(comparison, side), *cells])
    head = ["environment", "threshold", "side", "runs that reach it", "median policy steps", "fastest", "slowest"]
    words = f"Policy steps until the {comparison.measure.curve_words} first reaches the threshold."
    return html_table(head, rows, set(head[1:]) - {"side"}) + f'<p class="soft">{words}</p>\n'


def _cost(comparison: Comparison) -> str:
    spell = {"policy_steps": "{:,.0f}", "updates": "{:,.0f}"}
    rows = []
    for task, sides in comparison.cost.items():
        for side, cost in sides.items():
            cells = [
                (spell[name].format(cost[name]) if name in spell else duration(cost[name]))
                if name in cost
                else "unknown"
                for name in ("policy_steps", "updates", "wall_s", "cpu_s")
            ]
            rate = f"{cost['policy_steps'] / cost['wall_s']:,.0f}" if cost.get("wall_s") else "unknown"
            rows.append([escape(task), _side(comparison, side), *cells, rate])
    head = ["environment", "side", "policy steps", "updates", "wall time", "processor time", "policy steps/s"]
    words = "Means over runs. Times are training times without evaluations and checkpoints."
    return html_table(head, rows, set(head[2:])) + f'<p class="soft">{words}</p>\n'


def _config(comparison: Comparison) -> str:
    names = list(comparison.selection.counted)
    if not comparison.config:
        return "<p>All sides have the same configuration, apart from keys that do not affect learning.</p>\n"
    rows = [
        [f"<code>{escape(key)}</code>", *(escape(", ".join(of[name])) for name in names)]
        for key, of in comparison.config.items()
    ]
    return html_table(["key", *names], rows)


def _runs(comparison: Comparison) -> str:
    rows = []
    for side, tasks in comparison.selection.counted.items():
        for task, records in tasks.items():
            for record, value in zip(records, comparison.values[side][task], strict=True):
                cells = [
                    escape(task),
                    str(record.seed),
                    number(float(value)),
                    f"{record.policy_steps:,}",
                    record.status,
                ]
                rows.append(
                    [_side(comparison, side), *cells, escape(record.commit), f"<code>{escape(record.place)}</code>"]
                )
    out = [
        [
            _side(comparison, name),
            escape(r.task),
            str(r.seed),
            "–",
            f"{r.policy_steps:,}",
            escape(why),
            escape(r.commit),
            f"<code>{escape(r.place)}</code>",
        ]
        for name, r, why in comparison.selection.left_out
    ]
    head = ["side", "environment", "seed", "value", "policy steps", "state", "commit", "place"]
    left = f"<p>Excluded runs:</p>{html_table(head, out, {'seed', 'value', 'policy steps'})}" if out else ""
    table = html_table(head, rows, {"seed", "value", "policy steps"})
    return f"<details><summary>{len(rows)} compared runs</summary>{table}</details>{left}\n"


def _method(comparison: Comparison) -> str:
    pairs = [p for p in comparison.pairs if p.paired]
    words = [
        f"The value of a run is the {comparison.measure.words}. Unfinished runs are excluded and listed above.",
        "The interquartile mean (IQM) is the mean of the runs without the highest and the lowest quarter. Aggregates "
        "over several environments are computed from normalized scores. The optimality gap is the mean amount by "
        "which scores are below 1.",
        f"Intervals are {LEVEL:.0%} percentile bootstrap intervals of {REPLICATES:,} replicates; seeds are resampled "
        "within each environment (Agarwal et al. 2021, arXiv:2108.13264). The probability of improvement is Mann and "
        "Whitney’s U divided by the number of pairs of runs.",
        "A side is called significantly better only if the interval of the difference of interquartile means does not "
        "contain 0 and the interval of the probability of improvement does not contain 0.5. With several environments, "
        "this is tested on each of them and on the scores over all of them. The intervals of single environments are "
        "wider (Bonferroni), so that all of them together contain the true values with a probability of 95 %.",
    ]
    if pairs:
        luck = "; ".join(f"{p.first} and {p.second}: correlation {p.correlation:+.2f}" for p in pairs)
        words.append(
            f"Sides with the same seeds are resampled in pairs, so that shared effects of a seed cancel ({luck})."
        )
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in words)


def _side(comparison: Comparison, name: str) -> str:
    index = list(comparison.selection.counted).index(name) % 8
    chip = f'<span class="chip" style="background: var(--side-{index})"></span>'
    return f'<span class="side">{chip}{escape(name)}</span>'
