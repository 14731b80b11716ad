"""SheepRL's files in a user's folder, written anew from what they resolve to (tests/golden/*_files.json)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.compose import compose


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *groups, last = key.split(" ")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[last] = value
    return tree


def composed(leaves: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The config and tree of `exp=theirs`, whose files have their groups as SheepRL resolves them."""
    tree = nested(leaves)
    defaults = [{f"override /{group}": "theirs"} for group in ("algo", "env")]
    for group in ("algo", "env"):
        (folder / group).mkdir(parents=True)
        (folder / group / "theirs.yaml").write_text(yaml.safe_dump(tree.pop(group)))
    (folder / "exp").mkdir()
    body = yaml.safe_dump({"defaults": [*defaults, "_self_"], **tree})
    (folder / "exp" / "theirs.yaml").write_text(f"# @package _global_\n{body}")
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{folder}")
    return compose(["exp=theirs", *words])


def found(tree: Any, place: list[str]) -> Any:
    for name in place:
        tree = tree[name]
    return tree
