"""Reading of small JSON and YAML files of runs and sweeps; a damaged file causes an error message of one sentence."""

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
LONG = 20_000  # characters; a longer text is not parsed by libyaml, because deep nesting could overflow its stack


def describe_other_format(found: Any, ours: int) -> str:
    """Return the rest of an error message about a file whose format number is not `ours`."""
    if isinstance(found, int) and found > ours:
        return f"was written by a newer version of Shepherd (format {found}, this version reads {ours}); use that one"
    return "was written by Shepherd 0.1.0, which this version cannot read; train again with this version"


def read_mapping(path: Path, fix: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Load a mapping from a JSON or YAML file.

    Args:
        path: the file; read as YAML if its name ends in `.yaml`.
        fix: what the user can do if the file is damaged; appended to the message.
        keys: dotted keys that are required.

    Returns:
        The mapping.

    Raises:
        UserError: the file cannot be read, is not a mapping, or lacks a key. The message has the file and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = copy.deepcopy(_parse(text)) if path.suffix == ".yaml" else json.loads(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {fix}") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise UserError(f"{path}: damaged, not {'YAML' if path.suffix == '.yaml' else 'JSON'}; {fix}") from None
    for key in ("", *keys):
        value = content
        for part in key.split(".") if key else ():
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or (not key and not isinstance(value, dict)):
            raise UserError(f"{path}: damaged, {f'{key} is missing' if key else 'not a mapping of keys'}; {fix}")
    return content


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> Any:
    """Parse YAML. The result is cached, because several stages read the config of a run."""
    return yaml.load(text, FAST if len(text) < LONG else yaml.SafeLoader)
