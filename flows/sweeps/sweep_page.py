"""HTML page with the results of a sweep: one file that contains its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flows.report.figures import Picture
from flows.report.html import document, figures, section, table
from flows.report.sentences import number
from flows.report.sweep_tables import facts, short_names, short_value, state_words
from rlcore.config.values import spell

WIDE = "slices"  # a picture as wide as the page
OTHER = (
    "This section compares the final evaluations of the runs' best checkpoints. "
    "The verdict at the top of the page compares the runs' values, as defined there."
)


def page(
    status: dict[str, Any], definition: str, command: str, pictures: Sequence[Picture], confirmation: str = ""
) -> str:
    """Return the page of a sweep as HTML.

    Args:
        status: result of `flows.sweeps.sweep_report.status`.
        definition: sentence that defines the value of a trial.
        command: command that trains the best configuration; "" if no trial is complete.
        pictures: pictures of `flows.sweeps.trial_pictures`.
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
        for name, text in facts(status | {"confirmed": None})
    ]
    parts += [table(["", ""], rows), f'<p class="soft">{escape(definition)}</p>']
    if status["best"]:
        shown = not status["confirmed"] or status["confirmed"].get("better")
        heading = "Best configuration" if shown else "Best trial (not confirmed to be better than the default)"
        parts.append(section(heading, f"<pre>{escape(command)}</pre>" if command else "", _best(status["best"])))
    if pictures:
        narrow = [drawn for drawn in pictures if drawn.stem != WIDE]
        wide = "".join(figures([drawn]).replace('"pictures"', '"wide"', 1) for drawn in pictures if drawn.stem == WIDE)
        parts.append(section("Trials in pictures", figures(narrow) if narrow else "", wide))
    parts.append(section("All trials", _trials(status)))
    if confirmation:
        head = f'<h1>Confirmation: winner compared with default</h1><p class="soft">{OTHER}</p>'
        parts.append(f'<section class="part">{head}{confirmation}</section>')
    return document(title, *parts)


def markdown(status: Mapping[str, Any], definition: str, command: str) -> str:
    """Return a summary of a sweep in Markdown, for Prefect and MLflow.

    Args:
        status: result of `flows.sweeps.sweep_report.status`.
        definition: sentence that defines the value of a trial.
        command: command that trains the best configuration.

    Returns:
        The summary.
    """
    lines = [f"## Sweep {status['name']}", "", *(f"- {name}: {text}" for name, text in facts(status)), "", definition]
    if best := status["best"]:
        values = "".join(f"\n| `{key}` | {spell(value)} |" for key, value in best["params"].items())
        lines += [
            "",
            f"Best: trial {best['number']}, value {number(best['value'])}",
            "",
            "| key | value |\n| :-- | :-- |",
        ]
        lines[-1] += values
        lines += ["", f"`{command}`"]
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
