"""Reading of small JSON and YAML files of runs and sweeps, with short error messages for damaged files."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcore.errors import UserError

FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser takes an eighth of the time
NUMBER, NONE = (int, float), type(None)
# Types of the fields of results, summaries and events.
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("policy_steps", "env_steps", "updates", "episodes"), int),
    **dict.fromkeys(("time", "mean", "mean_length"), NUMBER),
    **dict.fromkeys(("std", "wall_s", "cpu_s", "policy_steps_per_s"), (*NUMBER, NONE)),
    **dict.fromkeys(("run_id", "algo", "env_id", "tier", "status", "digest", "checkpoint", "path"), str),
    **dict.fromkeys(("reason", "video"), (str, NONE)),
    **dict.fromkeys(("result", "spec"), dict),
    **dict.fromkeys(("eval", "greedy", "stochastic", "baseline", "model"), (dict, NONE)),
    **dict.fromkeys(("ci95", "returns"), (list, NONE)),  # of numbers
    "info": (dict, NONE),  # name -> result with the fields `RESULT`
}
RESULT = {"mean", "ci95", "episodes"}
WITH_FIELDS = ("result", "eval", "greedy", "stochastic", "baseline")  # their values contain such fields too
LONG = 20_000  # characters; a longer text is not parsed by libyaml, because deep nesting could overflow its stack


def describe_other_format(found: Any, ours: int) -> str:
    """Return the end of an error message about a file that another version of Shepherd wrote.

    The caller puts the name of the file before it.

    Args:
        found: format number in the file.
        ours: format number that this version reads.

    Returns:
        The text: which version wrote the file, and what the user can do.
    """
    if isinstance(found, int) and found > ours:
        return (
            f"was written by a newer version of Shepherd (format {found}, this version reads {ours}); "
            "use the newer version"
        )
    if found is not None and not isinstance(found, int):
        return "is damaged, because its format is not a number; restore it from a copy"
    return "was written by Shepherd 0.1.0, which this version cannot read; train again with this version"


def read_mapping(path: Path, fix: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Load a mapping from a JSON or YAML file.

    Args:
        path: the file; it is read as YAML if its name ends in `.yaml`, otherwise as JSON.
        fix: end of the error message, which tells the user what to do if the file is damaged.
        keys: keys that the file must contain; nested ones have the form "result.mean".

    Returns:
        The mapping.

    Raises:
        UserError: the file cannot be read, does not contain a mapping, or lacks one of `keys`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = copy.deepcopy(_parse(text)) if path.suffix == ".yaml" else json.loads(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {fix}") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        kind = "YAML" if path.suffix == ".yaml" else "JSON"
        raise UserError(f"{path}: damaged, because its content is not valid {kind}; {fix}") from None
    for key in ("", *keys):
        value = content
        for part in key.split(".") if key else ():
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or (not key and not isinstance(value, dict)):
            raise UserError(f"{path}: damaged, {f'{key} is missing' if key else 'not a mapping of keys'}; {fix}")
    return content


def read_record(path: Path, fix: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Load a JSON file of a run like `read_mapping`; raise UserError also if a field has a wrong type."""
    content = read_mapping(path, fix, keys)
    if (wrong := wrong_field(content)) is not None:
        raise UserError(f"{path}: damaged, {wrong} has a wrong type; {fix}")
    return content


def wrong_field(content: Mapping[str, Any]) -> str | None:
    """Return the name of a field that has a wrong type (see `FIELD_TYPES`), such as "greedy.mean", or None."""
    for name, value in content.items():
        expected = FIELD_TYPES.get(name)
        if expected is None:
            continue
        if not isinstance(value, expected):
            return name
        if isinstance(value, list) and not all(issubclass(kind, NUMBER) for kind in set(map(type, value))):
            return name
        if name in WITH_FIELDS and isinstance(value, Mapping) and (inner := wrong_field(value)) is not None:
            return f"{name}.{inner}"
        for key, result in value.items() if name == "info" and isinstance(value, Mapping) else ():
            if not isinstance(result, Mapping) or not result.keys() >= RESULT or wrong_field(result) is not None:
                return f"info.{key}"
    return None


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> Any:
    """Parse YAML. The result is cached, because a process reads the config of a run several times."""
    return yaml.load(text, FAST if len(text) < LONG else yaml.SafeLoader)
