"""Tables of sweeps and of groups of runs, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from flows.report.command_lines import short_path
from flows.report.sentences import number
from flows.report.terminal import table
from rlcore.config.values import spell
from rlcore.store.directory import RunDirectory

BEST = 10  # number of trials in the table


def status_table(status: Mapping[str, Any]) -> Group:
    """Return a table of a sweep's best trials, followed by facts such as the number of failed trials.

    `status` is the state of the sweep, as `shepherd sweep status --json` prints it.
    """
    trials = status["trials"]
    complete = sorted((t for t in trials if t["state"] == "complete"), key=lambda t: (-t["value"], t["number"]))
    keys = list(dict.fromkeys(key for trial in trials for key in trial["params"]))
    head = ("trial", "value", "policy steps", *short_names(keys).values())
    rows = [_row(trial, keys) for trial in complete[:BEST]]
    parts: list[RenderableType] = ["", Text(f"sweep {status['name']}", "bold"), ""]
    if rows:
        parts += [Padding.indent(table(head, rows, numbers=head, rule=True), 2), ""]
    parts += [Text.assemble((f"  {name:<14} ", "dim"), text) for name, text in facts(status)]
    return Group(*parts)


def group_table(name: str, runs: Sequence[RunDirectory], middle: Callable[[list[float]], float]) -> Group:
    """Return a table of the runs of a group with their results, followed by the interquartile mean of their returns.

    `middle` is the function that computes the interquartile mean.
    """
    head, rows, means = ("run", "status", "policy steps", "greedy mean", "model"), [], []
    for run in runs:
        summary = run.read_summary()
        greedy, model = (summary.get("eval") or {}).get("greedy"), summary.get("model")
        means += [greedy["mean"]] if greedy else []
        steps = f"{summary['policy_steps']:,}" if summary else "-"
        version = f"version {model['version']}" if model and model["version"] else "-"
        mean = number(greedy["mean"]) if greedy else "-"
        rows.append((run.path.name, summary.get("status", "-"), steps, mean, version))
    made = Padding.indent(table(head, rows, numbers=("policy steps", "greedy mean"), rule=True), 2)
    said = f"  interquartile mean of {len(means)} runs: {number(middle(means))}" if means else "  no run was evaluated"
    return Group("", Text(f"group {name}", "bold"), "", made, "", said, f"  in {short_path(runs[0].path.parent)}")


def facts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return facts about a sweep as pairs of a name and a text.

    They are the settings, the number of trials in each state, the policy steps saved by pruning, the first failure, the
    result of retraining the winner, and the command that resumes the sweep. Facts that do not apply are omitted.
    """
    trials = status["trials"]
    counts = {state: sum(t["state"] == state for t in trials) for state in ("complete", "pruned", "fail", "running")}
    counts_text = ", ".join(f"{count} {state_words(state, status)}" for state, count in counts.items() if count)
    items = [
        *status.get("about", {}).items(),
        ("trials", f"{len(trials)} of {status['wanted']}{f': {counts_text}' if counts_text else ''}"),
    ]
    if status.get("trial_0"):
        items.append(("trial 0", status["trial_0"]))
    if saved := status["saved"]:
        share = saved / (saved + sum(trial["policy_steps"] for trial in trials))
        items.append(("pruning saved", f"{saved:,} policy steps, {share:.0%} of the total without pruning"))
    if failed := next((t for t in trials if t["state"] == "fail"), None):
        items.append(("first failure", f"trial {failed['number']}: {failed.get('sentence', '')}"))
    if status["lost"]:
        items.append(("study", status["lost"]))
    if status["confirmed"]:
        items.append(("confirmation", status["confirmed"]["words"]))
    if status.get("go_on"):
        items.append(("interrupted", f"resume with {status['go_on']}"))
    return items


def state_words(state: str, status: Mapping[str, Any]) -> str:
    """Return the word that is printed for the state of a trial, such as "failed" for "fail".

    A trial in the state "running" is "stopped" if no process is running the sweep.
    """
    return {"fail": "failed", "running": "stopped" if status.get("go_on") else "running"}.get(state, state)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return dotted key -> shortest suffix that no other key has: "lr" for "algo.optimizer.lr" if it is unique."""
    short: dict[str, str] = {}
    for key in keys:
        words = key.split(".")
        ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        others = [other for other in keys if other != key]
        short[key] = next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), key)
    return short


def _row(trial: Mapping[str, Any], keys: list[str]) -> tuple[str, ...]:
    values = (short_value(trial["params"].get(key)) if key in trial["params"] else "-" for key in keys)
    return (str(trial["number"]), number(trial["value"]), f"{trial['policy_steps']:,}", *values)


def short_value(value: Any) -> str:
    """Format the value of a config key for a table; a float gets four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else spell(value)
