"""MLflow tags with the origin of a run or version, such as hashes and paths. A prefix groups them in sorted lists."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "shepherd."
DIGEST = f"{PREFIX}checkpoint_digest"  # tag of logged models and versions


def prefixed(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts as tags."""
    return {f"{PREFIX}{name}": value for name, value in facts.items()}


def tag_value(tags: Mapping[str, str], name: str) -> str | None:
    """Return the value of a tag, or None."""
    return tags.get(f"{PREFIX}{name}")
