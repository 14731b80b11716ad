"""SheepRL's Dreamer config files compose unchanged in a user folder, keep their values, and train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.registry.models import parts_of
from rlcore.config.stop import COMMON
from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.store.checkpoint import newest_good
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.diambra_engine import engines
from tests.flows.config.dreamer_leaves import translate_value
from tests.flows.config.sheeprl_files import DROPPED, MINUS_ONE, compare_leaves, compose_files, value_at
from tests.runs import lay_out
from tests.soaking import heavy, soak

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
ABSENT = REFUSED.keys() - set(DOAPP)  # without their environments
SOURCES = {  # exploration file of each fine-tuning file
    "p2e_dv3_fntn_L_doapp_64px_gray_combo_discrete_5Mstps": (
        "p2e_dv3_expl_L_doapp_128px_gray_combo_discrete_15Mexpl_20Mstps"
    ),
    **{f"p2e_dv{version}_finetuning": f"p2e_dv{version}_exploration" for version in (1, 2, 3)},
}
FAST = ("dreamer_v1", "dreamer_v2", "dreamer_v3", "dreamer_v3_5", "p2e_dv3_finetuning")
# Last part of a key -> value with which a file trains within seconds; the keys that are left out keep their values.
SMALL = {
    "accelerator": "cpu",
    "bins": 15,
    "cnn_channels_multiplier": 4,
    "dense_units": 8,
    "discrete_size": 4,
    "hidden_size": 8,
    "horizon": 3,
    "learning_starts": 16,
    "mlp_layers": 1,
    "n": 2,
    "num_envs": 2,
    "per_rank_batch_size": 2,
    "per_rank_sequence_length": 4,
    "precision": "32-true",
    "recurrent_state_size": 16,
    "size": 400,
    "stochastic_size": 4,
}


@pytest.mark.parametrize("name", sorted(FILES.keys() - REFUSED))
def test_sheeprl_dreamer_files_keep_their_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tree = compose_files(FILES[name], tmp_path, monkeypatch)
    assert compare_leaves(tree, FILES[name]) > 120
    metrics = tree["metric"]["aggregator"]["metrics"]
    assert metrics.keys() <= config.algo.metric_names() | {*COMMON}
    assert metrics["Loss/world_model_loss"] == metrics["State/kl"] == "mean"
    if "v3_5" in name:
        assert tree["algo"]["optimizer"]["name"] == "laprop" and metrics["Grads/agent"] == "mean"
        return
    for part in ("world_model", "actor", "critic"):
        assert value_at(tree, ["algo", part, "optimizer", "name"]) == "adam"
    assert metrics["Grads/actor_task" if "_expl" in name else "Grads/actor"] == "mean"


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
    assert config.algo.player.actor_type == "exploration"


def test_sheeprl_finetuning_file_selects_task_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = FILES["p2e_dv3_finetuning"] | {"algo player actor_type": "task"}
    assert compose_files(leaves, tmp_path, monkeypatch)[0].algo.player.actor_type == "task"


def test_reduction_of_sheeprl_metric_holds_for_each_critic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without the key of a critic stands for all critics with that metric.

    A longer name has priority over `Loss/value_loss`, the name in Dreamer V3. The file also names the task's metrics.
    """
    given = {"Loss/value_loss": "Min", "Loss/value_loss_exploration": "Max", "Rewards/intrinsic": "Sum"}
    given |= {"Loss/value_loss_exploration_novelty": "Mean"}
    typed = {f"metric aggregator metrics {name} _target_": f"torchmetrics.{kind}Metric" for name, kind in given.items()}
    critics = {"algo critics_exploration novelty weight": 2, "algo critics_exploration intrinsic weight": 0}
    critics |= {"algo critics_exploration novelty reward_type": "intrinsic"}
    tree = compose_files(FILES["p2e_dv3_exploration"] | typed | critics, tmp_path, monkeypatch)[1]
    metrics = tree["metric"]["aggregator"]["metrics"]
    assert {name: kind for name, kind in metrics.items() if kind != "mean"} == {
        "Loss/value_loss_exploration_extrinsic": "max",
        "Rewards/intrinsic_novelty": "sum",
    }
    assert metrics["Loss/value_loss_exploration_novelty"] == metrics["Loss/value_loss_task"] == "mean"
    assert metrics.keys() & given.keys() == {"Loss/value_loss_exploration_novelty"}


@pytest.fixture
def three_engines() -> Iterator[list[str]]:
    """Addresses of three DIAMBRA engines."""
    with engines(3) as addresses:
        yield addresses


def dry_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> RunDirectory:
    """Train a file with small networks until its first gradient step; return the run."""
    leaves = {key: SMALL.get(key.rpartition(" ")[2], value) for key, value in FILES[name].items()}
    if FILES[name].get("buffer type") == "episode":
        leaves[MINUS_ONE] = 10  # a gradient step needs a complete episode
    typed = ["algo.cnn_keys.decoder=[frame]"] if name in DOAPP else []
    config, _ = compose_files(leaves, folder / "files", monkeypatch, "dry_run=true", *typed, *words)
    run = lay_out(folder / "run", plain(config))
    session = RunTrainer(run)
    with run.writing():
        while not (boundary := session.advance(lambda sentence: None)).done:
            pass
        session.save()
    session.close()
    assert boundary.reason == "dry_run" and session.learner.updates > 0 and newest_good(run.checkpoints) is not None
    return run


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # MsPacmanNoFrameskip-v0
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=heavy if name in FAST else soak) for name in sorted(FILES.keys() - ABSENT)]
)
def test_dry_run_of_sheeprl_dreamer_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Fine-tuning starts from a run of the exploration file and loads its rows."""
    if "doapp" in name:
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(request.getfixturevalue("three_engines")))
    words = list[str]()
    if name in SOURCES:
        source = dry_run(SOURCES[name], tmp_path / "source", monkeypatch)
        words = [f"checkpoint.exploration_ckpt_path={source.path}", "buffer.load_from_exploration=true"]
    dry_run(name, tmp_path, monkeypatch, *words)


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
