"""Tags in MLflow on what a run or a version was made from: hashes and paths, behind one prefix in its sorted lists."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "shepherd."
DIGEST = f"{PREFIX}checkpoint_digest"  # of logged models and versions


def prefixed(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts as tags."""
    return {f"{PREFIX}{name}": value for name, value in facts.items()}


def tag_value(tags: Mapping[str, str], name: str) -> str | None:
    """Return what a tag says, None without it; earlier versions wrote it without the prefix."""
    return tags.get(f"{PREFIX}{name}", tags.get(name))
