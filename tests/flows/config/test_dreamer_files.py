"""SheepRL's Dreamer config files compose unchanged in a user folder and keep their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.registry.models import parts_of
from rlcore.errors import UserError
from tests.flows.config.dreamer_leaves import translate_value
from tests.flows.config.sheeprl_files import DROPPED, MINUS_ONE, compare_leaves, compose_files, value_at

ROOT = Path(__file__).parents[3]
FILES: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "golden" / "dreamer_files.json").read_text())
DOAPP = ("dreamer_v3_L_doapp", "dreamer_v3_L_doapp_128px_gray_combo_discrete")
CHANGED = {"env actions_as_observation noop": 0}
EXECUTION = ("env sync_env", MINUS_ONE)  # without effect on learning
REFUSED = {  # and a part of the error message
    "dreamer_v3_L_doapp": "rgb is not encoded",
    "dreamer_v3_L_doapp_128px_gray_combo_discrete": "rgb is not encoded",
    "dreamer_v3_L_navigate": "MineRL is not supported yet",
    "dreamer_v3_minedojo": "MineDojo is not supported yet",
    "dreamer_v3_super_mario_bros": "Super Mario Bros is not supported yet",
}


@pytest.mark.parametrize("name", sorted(FILES.keys() - REFUSED))
def test_sheeprl_dreamer_files_keep_their_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = compose_files(FILES[name], tmp_path, monkeypatch)[1]
    assert compare_leaves(tree, FILES[name]) > 120
    metrics = tree["metric"]["aggregator"]["metrics"]
    assert metrics["Loss/world_model_loss"] == metrics["State/kl"] == "mean"
    if "v3_5" in name:
        assert tree["algo"]["optimizer"]["name"] == "laprop" and metrics["Grads/agent"] == "mean"
        return
    for part in ("world_model", "actor", "critic"):
        assert value_at(tree, ["algo", part, "optimizer", "name"]) == "adam"
    assert metrics["Grads/actor"] == "mean"


@pytest.mark.parametrize("name", REFUSED)
def test_sheeprl_dreamer_files_are_refused_if_unsupported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        compose_files(FILES[name], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        "dreamer_v3_XL_crafter",
        "dreamer_v3_dmc_walker_walk",
        "dreamer_v3_dmc_cartpole_swingup_sparse",
        *DOAPP,
        *(name for name in FILES if name.startswith("dreamer_v3_5")),
    ],
)
def test_dreamer_presets_match_sheeprl_presets(name: str) -> None:
    """The doapp presets decode `frame`, because SheepRL's files decode a key that does not exist."""
    tree = compose([f"exp={name}"])[1]
    changed = {"algo cnn_keys decoder": ["frame"]} if name in DOAPP else {}
    for key, value in FILES[name].items():
        if (
            key.startswith(("algo ", "env ", "buffer "))
            and key not in EXECUTION
            and not any(part in key for part in DROPPED)
        ):
            assert value_at(tree, key.split(" ")) == (changed | CHANGED).get(key, translate_value(value)), key


def test_sheeprl_finetuning_file_names_exploration_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["checkpoint.exploration_ckpt_path=runs/explored", "buffer.load_from_exploration=true"]
    config, tree = compose_files(FILES["p2e_dv3_finetuning"], tmp_path, monkeypatch, *words)
    assert config.init_from == config.buffer.load_from == "runs/explored"
    assert "exploration_ckpt_path" not in tree["checkpoint"] and "load_from_exploration" not in tree["buffer"]


@pytest.mark.parametrize(("version", "count"), [("1", 3), ("2", 4), ("3", 5), ("3_5", 5)])
def test_parts_of_dreamer_match_sheeprl(version: str, count: int) -> None:
    # From SheepRL's model_manager files.
    parts = ["world_model", "actor", "critic", "target_critic", "moments"][:count]
    assert parts_of(compose([f"exp=dreamer_v{version}"])[0]) == parts


@pytest.mark.parametrize("version", ["1", "2", "3", "3_5"])
def test_parts_of_p2e_match_sheeprl(version: str) -> None:
    # From SheepRL's model_manager files; it has no files of V3.5, which has the parts of V3.
    each = ["critic", "target_critic", "moments"][: int(version[0])]
    task = {"world_model", "actor_task", *(f"{part}_task" for part in each)}
    critics = ("_intrinsic", "_extrinsic") if version[0] == "3" else ("",)
    own = {"ensembles", "actor_exploration", *(f"{part}_exploration{key}" for part in each for key in critics)}
    assert {*parts_of(compose([f"exp=p2e_dv{version}_exploration"])[0])} == task | own
    assert {*parts_of(compose([f"exp=p2e_dv{version}_finetuning"])[0])} == task
