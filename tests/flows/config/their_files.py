"""SheepRL's files in a user's folder, written anew from what they resolve to (tests/golden/*_files.json)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.compose import compose
from tests.flows.config.dreamer_leaves import named

PAGE = Path(__file__).parents[3] / "docs" / "coming_from_sheeprl.md"
MINUS = "env max_episode_steps"  # -1 is null here, as the page says too
# Leaves that are not here, by the word of the page that tells of them; a wrapper's own arguments are its suite's.
DROPPED = {
    "_target_": "_target_",
    "fused": "fused",
    "callbacks": "fabric.callbacks",
    "player": "algo.player",
    "sync_on_compute": "metric.sync_on_compute",
    "algo compile": "algo.compile",
    "env wrapper": "env.wrapper._target_",
}


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


def compare_leaves(tree: Any, leaves: dict[str, Any]) -> int:
    """Refuse a leaf that is another than theirs, or is not here and the page does not tell; how many are the same."""
    page, compared = PAGE.read_text(), 0
    for key, value in leaves.items():
        told = [word for part, word in DROPPED.items() if part in key]
        if told:
            assert f"`{told[0]}" in page or told[0] in page, key
            continue
        expected = None if key == MINUS and value == -1 else named(value)
        assert found(tree, key.split(" ")) == expected, key
        compared += 1
    return compared
