"""Events of a run, each as a line for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.system.printable import printable


def describe(kind: str, facts: dict[str, Any]) -> str | None:
    """Put what a listener is told into a line for a person; None where a line would be one too many."""
    sentence = _describe(kind, facts)
    return sentence and printable(sentence)


def _describe(kind: str, facts: dict[str, Any]) -> str | None:
    if kind == "baseline" and facts:
        return f"random baseline: {_mean(facts)}"
    if kind == "evaluation" and facts.get("final"):
        modes = [f"{mode} {_mean(facts[mode])}" for mode in ("greedy", "stochastic") if facts.get(mode)]
        return f"final evaluation of checkpoint {facts['policy_steps']:,}: {'; '.join(modes)}"
    if kind == "evaluation":
        return f"evaluation at {facts['policy_steps']:,} policy steps: greedy {_mean(facts['greedy'])}"
    if kind == "stage":
        return str(facts["doing"])
    if kind == "work":
        return f"{facts['doing']}: {facts['done']} of {facts['total']} {facts['unit']}"
    if kind == "trial":
        said = f"failed: {facts['sentence']}" if facts["state"] == "fail" else number(facts["value"])
        said = f"pruned at {said}" if facts["state"] == "pruned" else said
        return f"trial {facts['number']}: {said} · {facts['label'].partition(': ')[2]}"
    if kind == "ended" and facts["number"] is None:
        return f"{facts['label']}: {facts['sentence'] or 'done'}"
    if kind == "job" and "doing" in facts:
        return f"{facts['label'].partition(':')[0]}: {facts['doing']}"
    if kind == "registered":
        version = f"{facts['name']} version {facts['version']}: " if facts["name"] else ""
        return f"{version}{facts['decision']}"
    return None


def result_line(summary: dict[str, Any], evaluations: Sequence[dict[str, Any]] = ()) -> str:
    """Result of a run: how its policy does, and the model it became.

    Without a final evaluation, as a sweep's trial, it says what the last one of those while training gave.
    """
    modes = [f"{mode} {_mean(result)}" for mode, result in summary["eval"].items() if result]
    if not modes and evaluations:
        modes = [f"greedy {_mean(evaluations[-1]['greedy'])}, not judged at the end"]
    model = summary["model"]
    made = f"{model['name']} version {model['version']} ({', '.join(model['aliases'])})" if model else "not registered"
    return "; ".join([*modes, f"{summary['policy_steps']:,} policy steps", made])


def _mean(result: Mapping[str, Any]) -> str:
    about = " (interval by normal approximation)" if reaches_beyond(result) else ""
    return f"{number(result['mean'])} {between(*result['ci95'])} over {result['episodes']} episodes{about}"


def reaches_beyond(result: Mapping[str, Any]) -> bool:
    """Tell whether an interval reaches beyond all returns that were seen, as 500.3 on CartPole, which ends at 500."""
    returns = result.get("returns")
    return bool(returns) and (result["ci95"][0] < min(returns) or result["ci95"][1] > max(returns))


def duration(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`, rounded to whole ones."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float, beside: float = 0.0) -> str:
    """A return in the environment's unit, with as many decimals as say something, also of the larger one beside it."""
    size = max(abs(value), abs(beside))
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{0 if size >= 10_000 else 1 if size >= 10 else 2}f}"


def between(low: float, high: float) -> str:
    """Two ends, written alike."""
    return f"[{number(low, high)}, {number(high, low)}]"


def sign(value: float) -> str:
    """A difference of returns, with its sign."""
    return f"{'+' if value >= 0 else ''}{number(value)}"
