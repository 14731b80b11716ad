"""HTML page and Markdown summary of a sweep, and the pictures of its trials.

The page is one file that contains the pictures. `docs/decisions.md` 89 explains why Optuna does not draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from flows.report.figures import COLOURS, HEIGHT, INK, SOFT, WIDTH, Picture, drawing, label, legend, new_figure, picture
from flows.report.html import document, figures, section, table
from flows.report.sentences import number
from flows.sweeps.space import Dimension, to_stored
from flows.sweeps.status import Row, facts, short_names, short_value, state_words
from rlcore.config.values import spell
from rlcore.store.series import EPISODE_RETURN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLICES = "slices"  # name of the picture that is as wide as the page
OTHER = (
    "This section compares the final evaluations of the runs' best checkpoints. "
    "The verdict at the top of the page compares the runs' values, as defined there."
)
BLUE, VERMILION, GREEN = COLOURS[:3]
COLUMNS = 3  # number of panels side by side in the picture of values by key
Lines = Mapping[int, Sequence[Sequence[tuple[int, float]]]]  # trial -> for each seed (policy steps, mean of a quantity)
MARKS = {"complete": ("o", BLUE), "pruned": ("x", SOFT), "fail": ("v", VERMILION)}


def page(
    status: Mapping[str, Any], definition: str, command: str, pictures: Sequence[Picture], confirmation: str = ""
) -> str:
    """Return the page of a sweep as HTML.

    Args:
        status: result of `flows.sweeps.status.status`.
        definition: sentence that defines the value of a trial.
        command: command that trains the best configuration; "" if no trial is complete.
        pictures: result of `draw`.
        confirmation: HTML that compares the best trial with the default configuration; "" before they were compared.

    Returns:
        The page. All text that comes from trials is HTML-escaped.
    """
    title = f"Sweep {status['name']}"
    parts = [f"<h1>{escape(title)}</h1>"]
    if status["confirmed"]:
        words = status["confirmed"]["words"]
        kind = "verdict ranked" if status["confirmed"].get("better") else "verdict"
        parts.append(f'<div class="{kind}"><strong>{escape(words[:1].upper() + words[1:])}.</strong></div>')
    rows = [
        [f'<span class="soft">{escape(name)}</span>', escape(text)]
        for name, text in facts({**status, "confirmed": None})
    ]
    parts += [table(["", ""], rows), f'<p class="soft">{escape(definition)}</p>']
    if status["best"]:
        shown = not status["confirmed"] or status["confirmed"].get("better")
        heading = "Best configuration" if shown else "Best trial (not confirmed to be better than the default)"
        parts.append(section(heading, f"<pre>{escape(command)}</pre>" if command else "", _best(status["best"])))
    if pictures:
        narrow = [drawn for drawn in pictures if drawn.stem != SLICES]
        wide = "".join(
            figures([drawn]).replace('"pictures"', '"wide"', 1) for drawn in pictures if drawn.stem == SLICES
        )
        parts.append(section("Trials in pictures", figures(narrow) if narrow else "", wide))
    parts.append(section("All trials", _trials(status)))
    if confirmation:
        head = f'<h1>Confirmation: winner compared with default</h1><p class="soft">{OTHER}</p>'
        parts.append(f'<section class="part">{head}{confirmation}</section>')
    return document(title, *parts)


def markdown(status: Mapping[str, Any], definition: str, command: str) -> str:
    """Return a summary of a sweep in Markdown, for Prefect and MLflow.

    Args:
        status: result of `flows.sweeps.status.status`.
        definition: sentence that defines the value of a trial.
        command: command that trains the best configuration.

    Returns:
        The summary.
    """
    lines = [f"## Sweep {status['name']}", "", *(f"- {name}: {text}" for name, text in facts(status)), "", definition]
    if best := status["best"]:
        values = "".join(f"\n| `{key}` | {spell(value)} |" for key, value in best["params"].items())
        lines += ["", f"Best: trial {best['number']}, value {number(best['value'])}", ""]
        lines += [f"| key | value |\n| :-- | :-- |{values}", "", f"`{command}`"]
    return "\n".join(lines) + "\n"


def _best(best: Mapping[str, Any]) -> str:
    rows = [[f"<code>{escape(key)}</code>", escape(spell(value))] for key, value in best["params"].items()]
    return table(["key", f"trial {best['number']}, value {number(best['value'])}"], rows)


def _trials(status: Mapping[str, Any]) -> str:
    trials, best = status["trials"], status["best"]
    keys = list(dict.fromkeys(key for trial in trials for key in trial["params"]))
    head = ["trial", "state", "value", "policy steps", *short_names(keys).values()]
    rows = []
    for trial in trials:
        text = number(trial["value"]) if trial["value"] is not None else "–"
        values = [short_value(trial["params"].get(key, "–")) for key in keys]
        name = f"{trial['number']} (default)" if trial.get("default") else str(trial["number"])
        cells = [name, state_words(trial["state"], status), text, f"{trial['policy_steps']:,}", *values]
        cells = [escape(cell) for cell in cells]
        rows.append([f"<strong>{cell}</strong>" for cell in cells] if trial == best else cells)
    why = [f"<li>trial {t['number']}: {escape(t['sentence'])}</li>" for t in trials if "sentence" in t]
    return table(head, rows, {*head} - {"trial", "state"}) + (f'<ul class="soft">{"".join(why)}</ul>' if why else "")


def draw(
    trials: Sequence[Row],
    curves: Lines,
    space: Sequence[Dimension],
    shares: Mapping[str, float],
    quantity: str = EPISODE_RETURN.words,
) -> list[Picture]:
    """Draw the pictures of a sweep's trials; a picture is omitted if there are no data for it.

    Args:
        trials: the trials in the order of their numbers.
        curves: trial number -> for each run of the trial, the pairs (policy steps, mean of `quantity`).
        space: the varied keys.
        shares: key -> importance, as from `Study.importance`.
        quantity: name of the quantity in `curves`.

    Returns:
        The pictures, in the order in which the page of the sweep shows them.
    """
    if not trials:  # avoids the import of matplotlib when a sweep starts
        return []
    ended = any(trial["state"] in MARKS for trial in trials)
    learned = any(len(line) > 1 for lines in curves.values() for line in lines)
    with drawing():
        pictures = [_history(trials)] if ended else []
        pictures += [_learning(trials, curves, quantity)] if learned else []
        pictures += [_importance(shares)] if shares else []
        pictures += [_slices(trials, space)] if ended else []
    return pictures


def _history(trials: Sequence[Row]) -> Picture:
    """Draw the value of each trial against its number, with a line for the best value up to each trial."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    complete = [t for t in trials if t["state"] == "complete"]
    if complete:
        best = list(accumulate((t["value"] for t in complete), max))
        numbers = [*(t["number"] for t in complete), trials[-1]["number"]]
        axes.step(numbers, [*best, best[-1]], where="post", color=GREEN)
    _points(axes, trials, [t["number"] for t in trials])
    label(figure, axes, "trial", "value")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    seen = {t["state"] for t in trials}
    names = {"complete": "complete", "pruned": "pruned", "fail": "failed"}
    tones = {name: MARKS[state][1] for state, name in names.items() if state in seen}
    legend(figure, ({"best so far": GREEN} if complete else {}) | tones)
    caption = "Crosses: pruned trials, at their last value before pruning."
    if "fail" in seen:
        caption += " Triangles at the lower edge: failed trials, which have no value."
    return picture(figure, "history", "Value of each trial", caption)


def _learning(trials: Sequence[Row], curves: Lines, quantity: str) -> Picture:
    """Draw the learning curve of each run of each trial; highlight the best trial and the default configuration."""
    complete = [t for t in trials if t["state"] == "complete"]
    best = max(complete, key=lambda t: (t["value"], -t["number"]))["number"] if complete else None
    default = next((t["number"] for t in trials if t.get("default")), None)
    figure, axes = new_figure()
    for trial in sorted(trials, key=lambda t: (t["number"] == best, t["number"] == default)):  # highlighted ones on top
        number: int = trial["number"]
        tone = GREEN if number == best else BLUE if number == default else SOFT
        width, alpha = (0.8, 0.45) if tone == SOFT else (2.0, 1.0)
        for line in curves.get(number, ()):
            if not line:
                continue
            axes.plot(*zip(*line, strict=True), color=tone, linewidth=width, alpha=alpha)
            if trial["state"] in ("pruned", "fail"):
                mark, colour = MARKS[trial["state"]]
                axes.plot(*line[-1], marker=mark, color=colour, markersize=5)
    axes.set_xlim(left=0)
    label(figure, axes, "policy steps", f"greedy mean {quantity}")
    named: dict[str, str] = {} if best is None else {f"best, trial {best}": GREEN}
    if default not in (None, best):
        named["default"] = BLUE
    legend(figure, named | {"others": SOFT})
    caption = (
        f"Mean greedy {quantity} of evaluations during training, one line per seed. "
        "Crosses: last evaluation of pruned trials; triangles: last evaluation of failed trials."
    )
    return picture(figure, "curves", "Learning curves of trials", caption)


def _importance(shares: Mapping[str, float]) -> Picture:
    """Draw a bar for each varied key: its importance, as `Study.importance` returns it."""
    names = short_names(list(shares))
    keys = sorted(shares, key=lambda key: shares[key])
    figure, axes = new_figure(height=max(HEIGHT / 2, 0.9 + 0.35 * len(keys)))
    bars = axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=BLUE, height=0.6)
    axes.bar_label(bars, [f"{shares[key]:.0%}" for key in keys], padding=4, fontsize=9, color=INK)
    axes.set_xlim(0, 1.15 * max(shares.values()))
    axes.set_xlabel("importance", color=INK)
    axes.grid(visible=False, axis="y")
    caption = "How much each key decides if a completed trial is among the best (PED-ANOVA); the sum is 100 %."
    return picture(figure, "importance", "Importance of each key", caption)


def _slices(trials: Sequence[Row], space: Sequence[Dimension]) -> Picture:
    """Draw a panel for each varied key: a scatter plot of the value of the trials over the value of the key."""
    columns, rows = min(COLUMNS, len(space)), -(-len(space) // COLUMNS)
    figure, panels = new_figure(rows, columns, height=2.6 * rows, width=2 * WIDTH * columns / COLUMNS)
    flat = list(panels.flat) if rows * columns > 1 else [panels]
    names = short_names([dimension.key for dimension in space])
    for place, (axes, dimension) in enumerate(zip(flat, space, strict=False)):
        shown = [t for t in trials if dimension.key in t["params"]]
        values = [t["params"][dimension.key] for t in shown]
        if dimension.type == "categorical":
            values = [dimension.choices.index(value) for value in values]
        _points(axes, shown, values, shaded=True)
        _scale(axes, dimension)
        axes.set_title(names[dimension.key], fontsize=10.5, color=INK, loc="left")
        if place % columns == 0:
            axes.set_ylabel("value", color=INK)
    for axes in flat[len(space) :]:
        axes.set_visible(False)
    caption = "Later trials are darker. Crosses: pruned trials; triangles at the lower edge: failed trials."
    return picture(figure, SLICES, "Trial value by the value of each key", caption)


def _points(axes: Axes, trials: Sequence[Row], xs: Sequence[Any], shaded: bool = False) -> None:
    """Draw a marker for each trial that has ended, at its place `xs` and its value; later ones are darker if `shaded`.

    A failed trial has no value and is drawn at the lower edge.
    """
    for state, (mark, tone) in MARKS.items():
        chosen = [(x, t) for x, t in zip(xs, trials, strict=True) if t["state"] == state]
        chosen = [(x, t) for x, t in chosen if state == "fail" or t["value"] is not None]
        if not chosen:
            continue
        last = trials[-1]["number"] + 1
        alpha: Any = [0.3 + 0.7 * (t["number"] + 1) / last if shaded else 1.0 for _, t in chosen]
        heights = [0.02 if state == "fail" else t["value"] for _, t in chosen]
        place = {"transform": axes.get_xaxis_transform(), "clip_on": False} if state == "fail" else {}
        axes.scatter([x for x, _ in chosen], heights, s=25, c=tone, marker=mark, alpha=alpha, **place)


def _scale(axes: Axes, dimension: Dimension) -> None:
    if dimension.type == "categorical":
        axes.set_xticks(range(len(dimension.choices)), [spell(to_stored(choice)) for choice in dimension.choices])
        axes.set_xlim(-0.5, len(dimension.choices) - 0.5)
        return
    low, high, edge = dimension.low, dimension.high, 0.05  # margin, because trials may be at the ends
    if dimension.log:
        axes.set_xscale("log")
        axes.set_xlim(low * (low / high) ** edge, high * (high / low) ** edge)
    else:
        axes.set_xlim(low - edge * (high - low), high + edge * (high - low))
