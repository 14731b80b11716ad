"""Sentences that describe events and results of runs, and the format of numbers and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.system.printable import printable


def describe(kind: str, facts: dict[str, Any]) -> str | None:
    """Return the text that is printed for an event of a run or sweep; None if nothing should be printed.

    `kind` is the kind of the event, such as "evaluation"; `facts` are its data.
    """
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
    if kind in ("stage", "interrupted"):
        return str(facts["doing"])
    if kind == "work":
        return f"{facts['doing']}: {facts['done']} of {facts['total']} {facts['unit']}"
    if kind == "trial":
        result = f"failed: {facts['sentence']}" if facts["state"] == "fail" else number(facts["value"])
        result = f"pruned at {result}" if facts["state"] == "pruned" else result
        return f"trial {facts['number']}: {result} · {facts['label'].partition(': ')[2]}"
    if kind == "ended" and facts["number"] is None:
        return f"{facts['label']}: {facts['sentence'] or 'done'}"
    if kind == "job" and "doing" in facts:
        return f"{facts['label'].partition(':')[0]}: {facts['doing']}"
    if kind == "registered":
        version = f"{facts['name']} version {facts['version']}: " if facts["name"] else ""
        return f"{version}{facts['decision']}"
    return None


def result_line(summary: dict[str, Any], evaluations: Sequence[dict[str, Any]] = ()) -> str:
    """Return the result of a run in one line: mean returns of its policy, policy steps and the registered model.

    `summary` has the keys of summary.json. If it has no final evaluation, which is normal for trials of a sweep, the
    last one of `evaluations` (those during training) is used.
    """
    modes = [f"{mode} {_mean(result)}" for mode, result in summary["eval"].items() if result]
    if not modes and evaluations:
        modes = [f"greedy {_mean(evaluations[-1]['greedy'])} (last evaluation during training, no final evaluation)"]
    model = summary["model"]
    model_text = (
        f"{model['name']} version {model['version']} ({', '.join(model['aliases'])})" if model else "not registered"
    )
    return "; ".join([*modes, f"{summary['policy_steps']:,} policy steps", model_text])


def _mean(result: Mapping[str, Any]) -> str:
    about = " (normal approximation: the interval exceeds the observed returns)" if exceeds_schedule(result) else ""
    info = (f", {k} {number(v['mean'])} {between(*v['ci95'])}" for k, v in (result.get("info") or {}).items())
    return (
        f"{number(result['mean'])} {between(*result['ci95'])} over {result['episodes']} episodes{about}{''.join(info)}"
    )


def exceeds_schedule(result: Mapping[str, Any]) -> bool:
    """Return True if the confidence interval of a mean return extends beyond all observed returns.

    An example is an interval that ends at 500.3 on CartPole, whose highest possible return is 500. If all returns are
    equal, the interval can differ from them by a rounding error; this does not count.
    """
    returns = result.get("returns")
    if not returns or min(returns) == max(returns):
        return False
    return result["ci95"][0] < min(returns) or result["ci95"][1] > max(returns)


def duration(seconds: float) -> str:
    """Format seconds as `m:ss` or `h:mm:ss`, rounded to whole seconds."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age(seconds: float) -> str:
    """Format the time since an event in its largest unit, such as `12 s`, `5 min`, `3 h` or `20 d`."""
    for unit, size, limit in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < size * limit:
            return f"{max(0, int(seconds // size))} {unit}"
    return f"{int(seconds // 86400)} d"


def number(value: float, reference: float = 0.0) -> str:
    """Format a return; large numbers get fewer decimals.

    The number of decimals depends on the larger one of `value` and `reference`. If two numbers are printed together,
    each is passed as the `reference` of the other, so that both are formatted with the same precision.
    """
    size = max(abs(value), abs(reference))
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{0 if size >= 10_000 else 1 if size >= 10 else 2}f}"


def between(low: float, high: float) -> str:
    """Format an interval, with the same number of decimals at both ends."""
    return f"[{number(low, high)}, {number(high, low)}]"


def sign(value: float) -> str:
    """Format a difference of returns with its sign."""
    return f"{'+' if value >= 0 else ''}{number(value)}"
