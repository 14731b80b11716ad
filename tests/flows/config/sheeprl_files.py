"""Writes SheepRL's config files to a user folder, from their resolved values (tests/golden/*_files.json)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.compose import compose
from tests.flows.config.dreamer_leaves import translate_value

PAGE = Path(__file__).parents[3] / "docs" / "coming_from_sheeprl.md"
MINUS_ONE = "env max_episode_steps"  # SheepRL's -1 is null in Shepherd
# Keys that Shepherd lacks, and the text by which docs/coming_from_sheeprl.md mentions them.
DROPPED = {
    "_target_": "_target_",
    "fused": "fused",
    "callbacks": "fabric.callbacks",
    "player": "algo.player",
    "sync_on_compute": "metric.sync_on_compute",
    "algo compile": "algo.compile",
    "env wrapper": "env.wrapper._target_",
    "buffer load_from_exploration": "buffer.load_from_exploration",
    "exploration_ckpt_path": "checkpoint.exploration_ckpt_path",
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


def compose_files(leaves: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """Write the files of `exp=theirs` with SheepRL's resolved values, and return config and tree."""
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


def value_at(tree: Any, place: list[str]) -> Any:
    for name in place:
        tree = tree[name]
    return tree


def compare_leaves(tree: Any, leaves: dict[str, Any]) -> int:
    """Return the number of values equal to SheepRL's. All others must be keys that the page mentions."""
    page, compared = PAGE.read_text(), 0
    for key, value in leaves.items():
        mentions = [word for part, word in DROPPED.items() if part in key]
        if mentions:
            assert f"`{mentions[0]}" in page or mentions[0] in page, key
            continue
        expected = None if key == MINUS_ONE and value == -1 else translate_value(value)
        assert value_at(tree, key.split(" ")) == expected, key
        compared += 1
    return compared
