"""Results of the stop conditions of rl8 1.0.0 on sequences of values, written to rl8_conditions.json.

python -m tests.golden.makers.rl8_conditions [--check]      # with rl8==1.0.0 installed
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from rl8 import conditions

from tests.golden.makers.files import write_text

KEY = "returns/mean"
# Name of the condition in this project -> constructor with the arguments of a case.
MAKE: dict[str, Callable[..., Any]] = {
    "upper_bound": lambda value: conditions.HitsUpperBound(KEY, value),
    "lower_bound": lambda value: conditions.HitsLowerBound(KEY, value),
    "plateau": lambda patience, rtol: conditions.Plateaus(KEY, patience=patience, rtol=rtol),
    "stops_increasing": lambda patience: conditions.StopsIncreasing(KEY, patience=patience),
    "stops_decreasing": lambda patience: conditions.StopsDecreasing(KEY, patience=patience),
}
ARGUMENTS: dict[str, list[dict[str, float]]] = {
    "upper_bound": [{"value": 3.0}, {"value": -1.0}],
    "lower_bound": [{"value": -3.0}, {"value": 1.0}],
    "plateau": [{"patience": 1, "rtol": 0.0}, {"patience": 3, "rtol": 0.05}, {"patience": 2, "rtol": 0.5}],
    "stops_increasing": [{"patience": 1}, {"patience": 3}],
    "stops_decreasing": [{"patience": 1}, {"patience": 3}],
}


def sequences() -> list[list[float]]:
    """Return rising, falling, constant and random sequences, with repetitions, zeros and changes of sign."""
    rng = random.Random(0)
    rising = [float(i) for i in range(-4, 5)]
    noisy = [[round(rng.gauss(0, 3), 2) for _ in range(20)] for _ in range(5)]
    coarse = [[float(rng.randint(-2, 2)) for _ in range(20)] for _ in range(5)]
    slow = [[round(100 * 1.04**i, 3) for i in range(12)], [round(-100 * 0.96**i, 3) for i in range(12)]]
    return [rising, rising[::-1], [0.0] * 6, [2.0] * 6, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], *slow, *noisy, *coarse]


def results(condition: Any, values: list[float]) -> list[bool]:
    """Return the result of a condition after each value."""
    return [bool(condition({KEY: value})) for value in values]


def main() -> None:
    """Write the cases: condition, arguments, values, and the result after each value."""
    cases = [
        {"name": name, "arguments": arguments, "values": values, "results": results(MAKE[name](**arguments), values)}
        for name, choices in ARGUMENTS.items()
        for arguments in choices
        for values in sequences()
    ]
    both = [
        {"name": "stops_increasing", "arguments": {"patience": 2}},
        {"name": "upper_bound", "arguments": {"value": 1.0}},
    ]
    for values in sequences():
        parts = [MAKE[part["name"]](**part["arguments"]) for part in both]
        cases.append(
            {"name": "all", "arguments": both, "values": values, "results": results(conditions.And(parts), values)}
        )
    write_text("rl8_conditions", json.dumps(cases, separators=(",", ":")).replace('},{"name"', '},\n{"name"') + "\n")


if __name__ == "__main__":
    main()
