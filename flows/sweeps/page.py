"""The page on what came of a sweep: one HTML file with its pictures in it."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from flows.report.sentences import number
from flows.report.sweep_tables import facts, short_names, short_value
from rlcore.config.schema import spell

CAPTIONS = {
    "history": "Value of each trial",
    "importance": "Which keys mattered",
    "slices": "Each key beside what came of it (later trials darker, crosses: pruned)",
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .8rem .15rem 0; white-space: nowrap; }
th { color: #6b6b6b; font-weight: normal; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child, .facts td { text-align: left; }
tr.best td { font-weight: bold; } tr.pruned td, tr.fail td { color: #6b6b6b; }
.scroll { overflow-x: auto; } img { max-width: 100%; } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto; }
.verdict { border-left: 4px solid #0072B2; padding: .3rem .8rem; background: #f4f8fb; }
"""


def page(status: Mapping[str, Any], definition: str, command: str, pictures: Mapping[str, bytes]) -> str:
    """The page, from what `flows.sweeps.report.status` gives.

    `definition` says what a value is, `command` what one types to train the best configuration; pictures are PNGs.
    """
    parts = [f"<h1>Sweep {_text(status['name'])}</h1>"]
    if status["confirmed"]:
        words = status["confirmed"]["words"]
        parts.append(f"<p class=verdict>{_text(words[:1].upper() + words[1:])}.</p>")
    rows = "".join(f"<tr><td>{_text(name)}</td><td>{_text(said)}</td></tr>" for name, said in facts(status))
    parts += [f"<table class=facts>{rows}</table>", f"<p>{_text(definition)}</p>"]
    if status["best"]:
        parts += ["<h2>The best configuration</h2>", f"<pre>{_text(command)}</pre>"]
    for name, picture in pictures.items():
        encoded = base64.b64encode(picture).decode()
        parts.append(f"<h2>{CAPTIONS[name]}</h2><img alt='{CAPTIONS[name]}' src='data:image/png;base64,{encoded}'>")
    if status["confirmed"]:
        parts += ["<h2>Confirmation</h2>", _confirmation(status["confirmed"])]
    parts += ["<h2>All trials</h2>", _trials(status["trials"], status["best"])]
    head = f"<!doctype html><meta charset=utf-8><title>Sweep {_text(status['name'])}</title><style>{STYLE}</style>"
    return "\n".join([head, *parts, ""])


def markdown(status: Mapping[str, Any], definition: str, command: str) -> str:
    """The same in short, for Prefect and MLflow."""
    lines = [f"## Sweep {status['name']}", "", *(f"- {name}: {said}" for name, said in facts(status)), "", definition]
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


def _trials(trials: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None) -> str:
    keys = list(dict.fromkeys(key for trial in trials for key in trial["params"]))
    head = ["trial", "state", "value", "policy steps", *short_names(keys).values()]
    lines = ["".join(f"<th>{_text(title)}</th>" for title in head)]
    for trial in trials:
        said = number(trial["value"]) if trial["value"] is not None else "-"
        values = [short_value(trial["params"].get(key, "-")) for key in keys]
        cells = [str(trial["number"]), trial["state"], said, f"{trial['policy_steps']:,}", *values]
        kind = "best" if trial == best else trial["state"]
        title = f" title='{_text(trial['sentence'])}'" if "sentence" in trial else ""
        lines.append(f"<tr class={kind}{title}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}")
    return f"<div class=scroll><table>{''.join(lines)}</table></div>"


def _confirmation(confirmed: Mapping[str, Any]) -> str:
    lines = ["<tr><th>seed</th><th>winner</th><th>default</th></tr>"]
    values = confirmed["values"]
    for seed, winner, default in zip(confirmed["seeds"], values["winner"], values["default"], strict=True):
        lines.append(f"<tr><td>{seed}</td><td>{number(winner)}</td><td>{number(default)}</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def _text(text: Any) -> str:
    return html.escape(str(text), quote=True)
