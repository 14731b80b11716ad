"""Results of a run or an evaluation, as tables for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from flows.report.command_lines import short_path
from flows.report.sentences import duration, exceeds_schedule, number
from flows.report.terminal import table
from rlcore import algorithms
from rlcore.store.directory import RunDirectory

APPROXIMATE = "intervals are normal approximations, so their ends may exceed the possible range of returns"
HEAD = ("policy", "episodes", "mean return", "95 % interval", "min", "max")
INFO_HEAD = ("number from info", "policy", "episodes", "mean", "95 % interval", "min", "max")


def summary_table(summary: Mapping[str, Any], run: RunDirectory, next_commands: Sequence[str] = ()) -> Group:
    """Return a table of the results of a run, followed by the commands in `next_commands`.

    `summary` has the keys of summary.json; the keys for evaluations, video and model may be missing.
    """
    title = f"{algorithms.title(summary['algo'])} on {summary['env_id']} · seed {summary['seed']}"
    evaluations = _evaluations(summary.get("eval") or {}, summary.get("baseline"))
    facts = [Text.assemble((f"  {name:<15} ", "dim"), value) for name, value in _facts(summary, run)]
    commands = [Text(f"  {command}", "cyan") for command in next_commands]
    following = ["", Text("next", "bold"), *commands] if commands else []
    return Group("", Text(title, "bold"), "", evaluations, "", *facts, *following)


def evaluation_table(
    evaluations: Mapping[str, Mapping[str, Any] | None], baseline: Mapping[str, Any] | None, checkpoint: str
) -> Group:
    """Return a table with one row for each evaluation of a checkpoint, and one for the random policy.

    Args:
        evaluations: name of the row -> evaluation, a mapping with the keys `mean`, `ci95`, `episodes` and `returns`.
        baseline: evaluation of the random policy, or None.
        checkpoint: title of the table.

    Returns:
        The table as a renderable of the package `rich`.
    """
    return Group(Text(checkpoint, "bold"), "", _evaluations(evaluations, baseline))


def summary_markdown(summary: Mapping[str, Any]) -> str:
    """Return the summary as Markdown for Prefect's artifacts and MLflow's notes."""
    rows = _evaluation_rows(summary.get("eval") or {}, summary.get("baseline"))
    info = _info_rows(summary.get("eval") or {}, summary.get("baseline"))
    lines = [
        f"## {algorithms.title(summary['algo'])} on {summary['env_id']}, seed {summary['seed']}",
        "",
        f"| {' | '.join(HEAD)} |",
        "| :-- | --: | --: | :-: | --: | --: |",
        *([f"| {' | '.join(row)} |" for row in rows] or ["| not evaluated | | | | | |"]),
        *(["", APPROXIMATE] if _beyond([*(summary.get("eval") or {}).values(), summary.get("baseline")]) else []),
        *([f"\n| {' | '.join(INFO_HEAD)} |", "| :-- | :-- | --: | --: | :-: | --: | --: |"] if info else []),
        *(f"| {' | '.join(row)} |" for row in info),
        "",
        "| | |",
        "| :-- | :-- |",
        *[f"| {name} | {value} |" for name, value in _effort(summary)],
        f"| checkpoint | `{summary.get('checkpoint') or '-'}` |",
    ]
    return "\n".join(lines) + "\n"


def summary_html(summary: Mapping[str, Any]) -> str:
    """Return the summary as HTML for notebooks: title, table of returns, and effort."""
    evaluations, baseline = summary.get("eval") or {}, summary.get("baseline")
    rows, info = [HEAD, *_evaluation_rows(evaluations, baseline)], _info_rows(evaluations, baseline)
    title = f"{algorithms.title(summary['algo'])} on {summary['env_id']}, seed {summary['seed']}"
    return "".join(
        [
            f"<h4>{escape(title)}</h4>",
            _html_rows(rows),
            *([_html_rows([INFO_HEAD, *info])] if info else []),
            f"<p>{escape(APPROXIMATE)}</p>" if _beyond([*evaluations.values(), baseline]) else "",
            "<p>",
            "<br/>".join(f"{escape(name)}: {escape(value)}" for name, value in _effort(summary)),
            "</p>",
        ]
    )


def _html_rows(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; the first row has the column titles."""
    cells = (
        "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
        for row, cell in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _evaluations(evaluations: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> RenderableType:
    rows = _evaluation_rows(evaluations, baseline)
    if not rows:
        return "  not evaluated"
    policies = [(*row[:2], Text(row[2], "green" if row[0] in evaluations else ""), *row[3:]) for row in rows]
    policies_table = Padding.indent(table(HEAD, policies, numbers=HEAD[1:], rule=True), 2)
    parts: list[RenderableType] = [policies_table]
    if _beyond([*evaluations.values(), baseline]):
        parts.append(Text(f"  {APPROXIMATE}", "dim"))
    if info := _info_rows(evaluations, baseline):
        parts += ["", Padding.indent(table(INFO_HEAD, info, numbers=INFO_HEAD[2:], rule=True), 2)]
    return Group(*parts)


def _beyond(results: Sequence[Mapping[str, Any] | None]) -> bool:
    """Return True if the confidence interval of an evaluation extends beyond the observed returns.

    The note `APPROXIMATE`, which explains this, must then be printed.
    """
    return any(result and exceeds_schedule(result) for result in results)


def _evaluation_rows(evaluations: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    rows = []
    for name, result in _policies(evaluations, baseline):
        if not result or result.get("mean") is None:
            continue
        rows.append((name, *_cells(result, "returns")))
    return rows


def _info_rows(evaluations: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the rows of the numbers that `env.info_keys` selects, ordered by name, then by policy."""
    results = {policy: (result or {}).get("info") or {} for policy, result in _policies(evaluations, baseline)}
    names = dict.fromkeys(name for info in results.values() for name in info)
    return [
        (name, policy, *_cells(info[name], "values"))
        for name in names
        for policy, info in results.items()
        if name in info
    ]


def _policies(evaluations: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    return {**evaluations, "random baseline": baseline}.items()


def _cells(result: Mapping[str, Any], episodes: str) -> tuple[str, ...]:
    """Return the cells of a result from the number of episodes on; `episodes` is the key of the episodes' values."""
    values = result.get(episodes)
    ends = (number(min(values)), number(max(values))) if values else ("-", "-")
    interval = " to ".join(map(number, result["ci95"]))
    return f"{result['episodes']:,}", number(result["mean"]), interval, *ends


def _facts(summary: Mapping[str, Any], run: RunDirectory) -> list[tuple[str, str]]:
    paths = {
        "run directory": run.path,
        "checkpoint": summary.get("checkpoint") and run.path / summary["checkpoint"],
        "learning curve": run.curve if run.curve.exists() else None,
        "network input": run.inputs if run.inputs.exists() else None,
        "video": summary.get("video") and run.path / summary["video"],
    }
    facts = [*_effort(summary), *((name, short_path(path)) for name, path in paths.items() if path)]
    if dreams := summary.get("dreams"):
        facts.append(("dreams", f"{short_path(run.media)}: {', '.join(name.rpartition('/')[2] for name in dreams)}"))
    return facts


def _effort(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rate, model = summary["policy_steps_per_s"], summary.get("model") or {}
    steps = f"{summary['policy_steps']:,} ({summary['env_steps']:,} env steps)"
    speed = f"{rate:,.0f} steps/s" if rate is not None else "not trained yet"
    ended = summary.get("stopped_by")
    aliases = f" ({', '.join(model['aliases'])})" if model.get("aliases") else ""
    return [
        ("policy steps", f"{steps} in {summary['updates']:,} gradient steps"),
        *([("stopped by", ended)] if ended else []),
        ("time", f"{duration(summary['wall_s'])} ({speed}; processor {duration(summary['cpu_s'])})"),
        ("model", f"{model['name']} version {model['version']}{aliases}" if model.get("name") else "not registered"),
    ]
