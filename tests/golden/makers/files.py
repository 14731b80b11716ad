"""Writing of golden values, or comparison of new results with the files if a program gets the argument --check."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1]
CHECK = "--check" in sys.argv


def write_arrays(name: str, content: Mapping[str, Any]) -> None:
    """Write `name`.npz."""
    path = FOLDER / f"{name}.npz"
    if not CHECK:
        np.savez_compressed(path, **content)
        return
    with np.load(path) as file:
        assert file.files == [*content], f"{path.name} has other arrays"
        pairs = {key: (file[key], np.asarray(value)) for key, value in content.items()}
    other = [key for key, (old, new) in pairs.items() if old.dtype != new.dtype or old.tobytes() != new.tobytes()]
    gap = max((np.abs(pairs[key][0].astype(float) - pairs[key][1]).max() for key in other), default=0.0)
    print(f"{path.name}: {len(other)} of {len(pairs)} arrays differ, by at most {gap:.1e}")


def write_text(name: str, text: str) -> None:
    """Write `name`.json."""
    path = FOLDER / f"{name}.json"
    if CHECK:
        print(f"{path.name}: {'equal' if path.read_text() == text else 'differs'}")
    else:
        path.write_text(text)


def write_settings(name: str, facts: Mapping[str, Any]) -> None:
    """Write `name`_fixtures.json: versions of libraries, and what a test needs to repeat the calculation."""
    write_text(f"{name}_fixtures", json.dumps(facts, indent=2) + "\n")


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of packages, or of Python."""
    return {name: platform.python_version() if name == "python" else metadata.version(name) for name in packages}


def lines(entries: Mapping[str, Any], sort_keys: bool = False) -> str:
    """Return a JSON object with one line per entry."""
    rows = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=sort_keys)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(rows) + "\n}"
