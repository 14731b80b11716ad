"""MLflow tags that record the origin of a run or model version, such as hashes and paths.

Their names begin with "shepherd.", so that they are listed together.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "shepherd."
DIGEST = f"{PREFIX}checkpoint_digest"  # tag of logged models and versions


def prefixed(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a mapping in which each key has the prefix "shepherd."."""
    return {f"{PREFIX}{name}": value for name, value in facts.items()}


def tag_value(tags: Mapping[str, str], name: str) -> str | None:
    """Return the value of the tag `shepherd.<name>`; None if there is no such tag."""
    return tags.get(f"{PREFIX}{name}")
