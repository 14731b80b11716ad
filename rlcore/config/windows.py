"""Windows over observation keys: the config key `algo.windows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.spec import EnvSpec, Window

FORM = "{frames: 8, dilation: 1, kind: rolling}"
KINDS = ("rolling", "padded")


def read_windows(values: Mapping[str, Any], place: str) -> dict[str, Window]:
    """Convert the value of `algo.windows` to observation key -> window.

    Args:
        values: observation key -> mapping with `frames`, and optionally `dilation` and `kind` (`rolling` or `padded`).
        place: dotted name of the config key, for messages.

    Returns:
        Observation key -> window.

    Raises:
        UserError: A value is invalid.
    """
    found: dict[str, Window] = {}
    for key, value in values.items():
        stated = f"{place}.{key}={spell(value)}"
        if isinstance(value, Mapping) and value and all(isinstance(part, Mapping) for part in value.values()):
            nested = read_windows(value, f"{place}.{key}")  # a nested observation key: arm.angle
            found |= {f"{key}.{part}": window for part, window in nested.items()}
            continue
        if not isinstance(value, Mapping) or "frames" not in value or not {*value} <= {"frames", "dilation", "kind"}:
            raise UserError(f"{stated}: must have the form {FORM}; only frames is required")
        frames, dilation, kind = value["frames"], value.get("dilation", 1), value.get("kind", KINDS[0])
        for name, number, low in (("frames", frames, 2), ("dilation", dilation, 1)):
            if not isinstance(number, int) or isinstance(number, bool) or number < low:
                raise UserError(f"{stated}: {name} must be an integer of {low} or more")
        if kind not in KINDS:
            raise UserError(f"{stated}: kind must be one of {', '.join(KINDS)}")
        found[key] = Window(frames, dilation, padded=kind == "padded")
    return found


def check_windows(windows: Mapping[str, Window], spec: EnvSpec, keys: Sequence[str], place: str) -> None:
    """Raise UserError if a window is over a key that the agent does not read, or that has a frame stack.

    `keys` are the observation keys that the agent reads, and `place` is the dotted name of the config key.
    """
    for key in windows:
        if key not in keys:
            raise UserError(
                f"{place}.{key}: the agent does not read this key; use one of {', '.join(keys)}, or add {key} to "
                "algo.mlp_keys.encoder or algo.cnn_keys.encoder"
            )
        if spec.obs[key].window is not None:
            raise UserError(f"{place}.{key}: this key already has a frame stack; set env.frame_stack=1")
