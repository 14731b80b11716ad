"""Small JSON and YAML files of runs and sweeps, read so that damage is told in one sentence."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcore.errors import UserError

FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same values, by libyaml in an eighth of the time
LONG = 20_000  # characters from which on a text may be nested so deeply that libyaml overflows the stack


def read_mapping(path: Path, fix: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the mapping that a JSON or YAML file holds.

    Args:
        path: the file; a name that ends in `.yaml` is read as YAML.
        fix: what the user can do about a damaged file; the end of the sentence.
        keys: dotted keys that must be there.

    Returns:
        The mapping.

    Raises:
        UserError: the file cannot be read, holds something else, or lacks a key; names the file and the fix.
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
    """Return the values of a YAML file: a run's config is read several times at every boundary."""
    return yaml.load(text, FAST if len(text) < LONG else yaml.SafeLoader)
