"""SheepRL's files of its Dreamers in a user's folder: they compose as they are, and mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.registry.models import parts_of
from rlcore.errors import UserError
from tests.flows.config.dreamer_leaves import named
from tests.flows.config.their_files import DROPPED, MINUS, compare_leaves, composed, found

ROOT = Path(__file__).parents[3]
FILES: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "golden" / "dreamer_files.json").read_text())
DOAPP = ("dreamer_v3_L_doapp", "dreamer_v3_L_doapp_128px_gray_combo_discrete")
OTHERS = {"env actions_as_observation noop": 0}
HOW = ("env sync_env", MINUS)  # not what is learned
REFUSED = {  # and what is said
    "dreamer_v3_L_doapp": "rgb is not encoded",
    "dreamer_v3_L_doapp_128px_gray_combo_discrete": "rgb is not encoded",
    "dreamer_v3_L_navigate": "MineRL is not supported yet",
    "dreamer_v3_minedojo": "MineDojo is not supported yet",
    "dreamer_v3_super_mario_bros": "Super Mario Bros is not supported yet",
}


@pytest.mark.parametrize("name", sorted(FILES.keys() - REFUSED))
def test_every_leaf_is_theirs_or_the_page_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = composed(FILES[name], tmp_path, monkeypatch)[1]
    assert compare_leaves(tree, FILES[name]) > 120
    for part in ("world_model", "actor", "critic"):
        assert found(tree, ["algo", part, "optimizer", "name"]) == "adam"
    metrics = tree["metric"]["aggregator"]["metrics"]
    assert metrics["Loss/world_model_loss"] == metrics["State/kl"] == metrics["Grads/actor"] == "mean"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_here_is_told_in_its_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        composed(FILES[name], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "name", ["dreamer_v3_XL_crafter", "dreamer_v3_dmc_walker_walk", "dreamer_v3_dmc_cartpole_swingup_sparse", *DOAPP]
)
def test_presets_of_their_names_learn_as_theirs(name: str) -> None:
    """Pictures are decoded under the name that they have here; its own file of doapp names some that are not there."""
    tree = compose([f"exp={name}"])[1]
    others = {"algo cnn_keys decoder": ["frame"]} if name in DOAPP else {}
    for key, value in FILES[name].items():
        if key.startswith(("algo ", "env ", "buffer ")) and key not in HOW and not any(part in key for part in DROPPED):
            assert found(tree, key.split(" ")) == (others | OTHERS).get(key, named(value)), key


@pytest.mark.parametrize("version", [1, 2, 3])
def test_parts_that_theirs_registers_are_registered(version: int) -> None:
    parts = ["world_model", "actor", "critic", "target_critic", "moments"][: version + 2]  # of its model_manager files
    assert parts_of(compose([f"exp=dreamer_v{version}"])[0]) == parts
