"""Learning curve as an SVG image, for the result of a `Trainer` in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 280, 64, 14, 26, 40  # pixels
BLUE, VERMILION, INK, GRID = "#0072b2", "#d55e00", "#555555", "#cccccc"
Point = tuple[float, float]


def curve_svg(training: Sequence[Point], evaluations: Mapping[int, Mapping[str, Any]]) -> str:
    """Draw the returns of training episodes and of evaluations over policy steps.

    Args:
        training: policy steps and mean return of the training episodes.
        evaluations: policy steps -> evaluation with `mean` and perhaps `ci95`, the ends of its 95 % interval.

    Returns:
        An element `svg`; "" if there is no finite value.
    """
    line = [(steps, value) for steps, value in training if math.isfinite(value)]
    marks = [
        (steps, result["mean"], *(result.get("ci95") or (result["mean"], result["mean"])))
        for steps, result in evaluations.items()
        if math.isfinite(result["mean"])
    ]
    values = [value for _, value in line] + [value for _, *ends in marks for value in ends if math.isfinite(value)]
    if not values:
        return ""
    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    last = max([steps for steps, _ in line] + [steps for steps, *_ in marks]) or 1

    def x(steps: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * steps / last

    def y(value: float) -> float:
        value = min(max(value, low), high)  # an interval can end at infinity
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [_text(LEFT, 15, "training episodes", BLUE), _text(LEFT + 130, 15, "evaluation, 95 % interval", VERMILION)]
    for tick in _ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 6, y(tick) + 4, f"{tick:,.6g}", INK, "end"))
    parts.extend(_text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:,.0f}", INK, "middle") for tick in _ticks(0, last))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "policy steps", INK, "middle"))
    if line:
        path = " ".join(f"{x(steps):.1f},{y(value):.1f}" for steps, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    for steps, mean, lower, upper in marks:
        parts.append(f'<path d="M{x(steps):.1f} {y(lower):.1f}V{y(upper):.1f}" stroke="{VERMILION}"/>')
        parts.append(f'<circle cx="{x(steps):.1f}" cy="{y(mean):.1f}" r="3.5" fill="{VERMILION}"/>')
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12" style="background:white"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, color: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{text}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from `low` to `high`."""
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * size) <= 5)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
