"""Run directories that follow a parameter file; params.yaml and dvc.yaml, compared with the code."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.config.compose import compose, compose_params, dump, params_yaml
from flows.runs.milestones import note_start
from flows.runs.params import DECIDING, MAY_SET_ASIDE, follow_params
from rlcore.config.groups import EnvConfig
from rlcore.config.learning_half import learning_half
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from tests.soaking import heavy

pytestmark = heavy

ROOT = Path(__file__).resolve().parents[3]
PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES, SUITE = PIPELINE["stages"], PIPELINE["vars"][0]["suite"]

SPEC = spec_of(make(EnvConfig("CartPole-v1"))).to_json()


@pytest.fixture
def params(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text())
    return path


def started_run(tmp_path: Path, params: Path) -> RunDirectory:
    """Return a run with a card, a dataset, a checkpoint folder and an event log."""
    run = follow_params(str(tmp_path / "run"), str(params), [], "make-env")
    settings = dataclasses.asdict(EnvSettings.of(config_of(run).env))
    run.card.write_text(json.dumps({"tier": "snapshot", "spec": SPEC, "settings": settings}))
    run.dataset.mkdir()
    (run.dataset / "manifest.json").write_text('{"seed": 42}')
    (run.checkpoints / "128").mkdir(parents=True)
    write_json(run.path / "results" / "metrics.json", {})
    note_start(run)
    return run


def edit(params: Path, **dotted: Any) -> None:
    tree = yaml.safe_load(params.read_text())
    for key, value in dotted.items():
        *groups, name = key.split("__")
        branch = tree
        for group in groups:
            branch = branch[group]
        branch[name] = value
    params.write_text(yaml.safe_dump(tree))


def keys_of(stage: str) -> list[str]:
    return STAGES[stage]["do"]["params"]


def covered(key: str, listed: list[str]) -> bool:
    return any(key == entry or key.startswith(f"{entry}.") for entry in listed)


def leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
    nested = [leaves(v, f"{prefix}{k}.") if isinstance(v, dict) and v else [f"{prefix}{k}"] for k, v in tree.items()]
    return [key for part in nested for key in part]


def test_params_file_matches_preset_ppo() -> None:
    """Update the file with `shepherd config exp=ppo --params > params.yaml`."""
    assert (ROOT / "params.yaml").read_text() == dump(params_yaml(["exp=ppo"]))


@pytest.mark.parametrize("phase", ["exploration", "finetuning"])
def test_plan2explore_params_file_matches_preset(phase: str) -> None:
    """Update the files with the commands in docs/pipelines.md."""
    source = "runs/dvc/plan2explore/exploration"
    words = [f"checkpoint.exploration_ckpt_path={source}", "buffer.load_from_exploration=true"]
    typed = [f"exp=p2e_dv3_{phase}_point_mass", *(words if phase == "finetuning" else [])]
    assert (ROOT / "pipelines/plan2explore" / f"{phase}.yaml").read_text() == dump(params_yaml(typed))


def test_compose_params_matches_preset(params: Path) -> None:
    names = ["run_dir=x", "run_name=y"]
    assert compose_params(params, names) == compose(["exp=ppo", *names])


def test_compose_params_resolves_interpolations(params: Path) -> None:
    edit(params, algo__dense_units=16)
    config, _ = compose_params(params, ["run_dir=x", "env.id=Acrobot-v1"])
    assert config.algo.actor.dense_units == config.algo.critic.dense_units == 16
    assert config.exp_name == "ppo_Acrobot-v1"


def test_compose_params_reads_number_without_decimal_point(params: Path) -> None:
    params.write_text(params.read_text().replace("    lr: 0.001", "    lr: 1e-05"))
    assert compose_params(params, ["run_dir=x"])[0].algo.optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 1\n", "does not contain the parameters of a run"),
        ("algo: {name: [", "cannot be read"),
        ("seed: 1\n", "does not contain the parameters of a run"),
        ("algo: {name: ppo}\nenv: {id: CartPole-v1}\n", "algo.total_steps"),
    ],
)
def test_compose_params_refuses_invalid_file(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        compose_params(tmp_path / "params.yaml", [])


def test_compose_params_names_mistyped_key(params: Path) -> None:
    edit(params, algo__gama=0.9)
    with pytest.raises(UserError, match=r"algo\.gama.*gamma"):
        compose_params(params, [])


def test_stage_train_lists_every_learning_key(params: Path) -> None:
    config, _ = compose_params(params, ["run_dir=x"])
    decisive = [*leaves(learning_half(config)), *DECIDING]
    assert [key for key in decisive if not covered(key, keys_of("train"))] == []


def test_stage_make_env_lists_environment_keys_only() -> None:
    grouped = {"num_stack": "actions_as_observation", "noop": "actions_as_observation"}
    grouped |= {"dilation": "actions_as_observation", "restart": "restart_on_exception"}
    names = {f"env.{grouped.get(field.name, field.name)}" for field in dataclasses.fields(EnvSettings)}
    assert set(keys_of("make-env")) == names


def test_dvc_stages_run_shepherd_stage() -> None:
    for name, stage in STAGES.items():
        assert stage["foreach"] == "${suite}"
        assert stage["do"]["cmd"] == f"shepherd stage {name} runs/dvc/${{key}} --params params.yaml ${{item}}"


@pytest.mark.parametrize(("name", "overrides"), SUITE.items())
def test_params_compose_for_every_suite_environment(name: str, overrides: str, params: Path) -> None:
    config, _ = compose_params(params, overrides.split())
    assert config.env.id == name


def test_follow_params_creates_run(tmp_path: Path, params: Path) -> None:
    edit(params, seed=7)
    run = follow_params(str(tmp_path / "run"), str(params), ["env.id=Acrobot-v1"], "train")
    config = config_of(run)
    assert (config.seed, config.env.id, config.run_dir) == (7, "Acrobot-v1", str(tmp_path / "run"))
    assert run.overrides.read_text().splitlines()[:3] == ["--params", str(params), "env.id=Acrobot-v1"]


def test_follow_params_keeps_unchanged_run(tmp_path: Path, params: Path) -> None:
    run = started_run(tmp_path, params)
    before = (run.config.read_bytes(), run.config.stat().st_mtime_ns)
    assert follow_params(str(run.path), str(params), [], "train").path == run.path
    assert (run.config.read_bytes(), run.config.stat().st_mtime_ns) == before


def test_follow_params_updates_keys_without_effect_on_learning(tmp_path: Path, params: Path) -> None:
    run = started_run(tmp_path, params)
    name = config_of(run).run_name
    edit(params, metric__log_every=77, evaluation__final_episodes=3)
    follow_params(str(run.path), str(params), [], "evaluate")
    config = config_of(run)
    assert (config.metric.log_every, config.evaluation.final_episodes, config.run_name) == (77, 3, name)
    assert run.events.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"algo__optimizer__lr": 0.01},
        {"seed": 3},
        {"algo__total_steps": 32768},
        {"evaluation__every": 999},
        {"stop": [{"upper_bound": {"metric": "Rewards/rew_avg", "value": 475.0}}]},
        {"num_threads": 2},
        {"callbacks": ["tests.probes.callbacks:Recorder"]},
        {"env__info_keys": ["distance"]},
    ],
)
def test_follow_params_sets_aside_run_with_other_parameters(
    tmp_path: Path,
    params: Path,
    change: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.probes.callbacks")
    run = started_run(tmp_path, params)
    identity, config = run.read_identity(), run.config.read_bytes()
    edit(params, **change)
    for stage in ("evaluate", "register-model"):
        with pytest.raises(UserError, match="; first run `shepherd stage train "):
            follow_params(str(run.path), str(params), [], stage)
    assert run.read_identity() == identity
    follow_params(str(run.path), str(params), [], "train")
    aside = RunDirectory(run.path / "set_aside" / identity["run_id"])
    assert (aside.read_identity(), aside.config.read_bytes()) == (identity, config)
    assert (aside.checkpoints / "128").is_dir()
    assert (aside.dataset / "manifest.json").exists()
    assert aside.events.exists()
    assert (aside.path / "results/metrics.json").exists()
    assert not (run.path / "results").exists()
    assert run.read_identity()["run_id"] != identity["run_id"]
    assert not run.events.exists()
    assert not run.checkpoints.exists()
    assert run.card.exists()
    assert run.dataset.exists() == ("seed" not in change)  # its episodes depend on the seed
    assert "; the run was moved to " in caplog.text


def test_follow_params_continues_with_longer_budget(tmp_path: Path, params: Path) -> None:
    own = {"evaluation__every": 4096, "evaluation__max_episode_steps": 500, "checkpoint__every": 4096}
    edit(params, algo__anneal_lr=False, **own)
    run = started_run(tmp_path, params)
    edit(params, algo__total_steps=131072)
    follow_params(str(run.path), str(params), [], "train")
    assert run.events.exists()
    assert config_of(run).algo.total_steps == 131072


def test_follow_params_refuses_mistake_without_changes(tmp_path: Path, params: Path) -> None:
    run = started_run(tmp_path, params)
    for change in ({"env__id": "CartPol-v1"}, {"algo__mlp_keys__encoder": ["stat"]}, {"init_from": "nowhere"}):
        copy = tmp_path / "mistaken.yaml"
        copy.write_text(params.read_text())
        edit(copy, **change)
        with pytest.raises(UserError):
            follow_params(str(run.path), str(copy), [], "train")
        assert run.events.exists()
        assert not (run.path / "set_aside").exists()


def test_follow_params_recognizes_init_from(tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stores `init_from` as the folder to which the URI pointed when the run was created."""
    source = {
        "given": "models:/x@champion",
        "uri": "models:/x@champion",
        "path": str(tmp_path / "weights"),
        "digest": "0",
    }
    monkeypatch.setattr("flows.runs.check._source", lambda *given: source)
    edit(params, init_from="models:/x@champion")
    run = started_run(tmp_path, params)
    assert config_of(run).init_from == source["path"]
    follow_params(str(run.path), str(params), [], "evaluate")
    edit(params, init_from="models:/y@champion")
    with pytest.raises(UserError, match="init_from"):
        follow_params(str(run.path), str(params), [], "evaluate")


def test_follow_params_sets_aside_run_if_its_source_was_trained_again(
    tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source with the same checkpoint, or one that was removed, does not matter; another checkpoint does."""
    source = RunDirectory(tmp_path / "source")
    path = write_checkpoint(source, 10, b"first")
    digest = checkpoint.manifest(path)["digest"]
    origin = {"given": str(source.path), "uri": None, "path": str(path), "digest": digest}
    monkeypatch.setattr("flows.runs.check._source", lambda *given: origin)
    edit(params, init_from=str(source.path))
    run = started_run(tmp_path, params)
    follow_params(str(run.path), str(params), [], "evaluate")
    shutil.rmtree(path)
    follow_params(str(run.path), str(params), [], "evaluate")
    write_checkpoint(source, 10, b"second")
    with pytest.raises(UserError, match="init_from=.*: its checkpoint has changed since the run was created"):
        follow_params(str(run.path), str(params), [], "evaluate")
    follow_params(str(run.path), str(params), [], "train")
    assert (run.path / "set_aside").exists()


def test_follow_params_compares_with_best_checkpoint_of_source(
    tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that does not fine-tune starts from the best checkpoint of its source, even if a newer one exists."""
    source = RunDirectory(tmp_path / "source")
    best = write_checkpoint(source, 10, b"best")
    digest = checkpoint.manifest(best)["digest"]
    origin = {"given": str(source.path), "uri": None, "path": str(tmp_path / "moved"), "digest": digest}
    monkeypatch.setattr("flows.runs.check._source", lambda *given: origin)
    edit(params, init_from=str(source.path))
    run = started_run(tmp_path, params)
    newest = write_checkpoint(source, 20, b"newest")
    checkpoint.name_best(source, best)
    follow_params(str(run.path), str(params), [], "evaluate")
    checkpoint.name_best(source, newest)
    with pytest.raises(UserError, match="its checkpoint has changed"):
        follow_params(str(run.path), str(params), [], "evaluate")


def write_checkpoint(run: RunDirectory, steps: int, weights: bytes) -> Path:
    run.path.mkdir(exist_ok=True)
    run.config.write_text("algo: {}\n")
    state = {"weights": np.frombuffer(weights, np.uint8).copy()}
    return checkpoint.save(run.checkpoints, steps, {"learner": state}, {}, replace=True)


def test_follow_params_sets_aside_unreadable_config(tmp_path: Path, params: Path) -> None:
    run = started_run(tmp_path, params)
    old = run.read_identity()
    run.config.write_text(run.config.read_text() + "a_key_of_yesterday: 1\n")
    run.identity.write_text(json.dumps(old | {"core_hash": "yesterday"}))
    follow_params(str(run.path), str(params), [], "train")
    assert "a_key_of_yesterday" in (run.path / "set_aside" / old["run_id"] / "config.yaml").read_text()


def test_later_stages_list_no_further_deciding_key() -> None:
    """Otherwise, a change of the key would make the run stale without a new training."""
    later = [stage for stage in ("evaluate", "register-model") if stage not in MAY_SET_ASIDE]
    for stage in later:
        assert [
            key for key in keys_of(stage) if covered(key, list(DECIDING)) and not covered(key, keys_of("train"))
        ] == []


def test_follow_params_error_names_commands(tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    run = started_run(tmp_path, params)
    overrides = ["env.id=Acrobot-v1", "env.wrapper={a: 1}"]
    with pytest.raises(UserError) as refused:
        follow_params(str(run.path), str(params), overrides, "evaluate")
    advised = re.findall(r"`(.+?)`", str(refused.value))
    train = ["shepherd", "stage", "train", str(run.path), "--params", str(params), *overrides]
    assert [shlex.split(command) for command in advised] == [train]
    for address, target in {
        "evaluate": "train",
        "evaluate@Acrobot-v1": "train@Acrobot-v1",
        "pipelines/mine/dvc.yaml:evaluate": "pipelines/mine/dvc.yaml:train",
        "pipelines/plan2explore/dvc.yaml:finetuning": "pipelines/plan2explore/dvc.yaml:finetuning",
    }.items():
        monkeypatch.setenv("DVC_STAGE", address)
        with pytest.raises(UserError, match=f"`dvc repro --force {target}`"):
            follow_params(str(run.path), str(params), overrides, "evaluate")


def test_follow_params_sets_aside_run_of_other_code(
    tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started_run(tmp_path, params)
    old = run.read_identity()["run_id"]
    monkeypatch.setattr("flows.runs.params.core_hash", lambda: "other")
    monkeypatch.setattr("flows.runs.create.code_version", lambda: {"core_hash": "other"})
    follow_params(str(run.path), str(params), [], "train")
    assert (run.path / "set_aside" / old / "config.yaml").exists()
    follow_params(str(run.path), str(params), [], "evaluate")


def test_set_aside_completes_after_kill(tmp_path: Path, params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed after each number of moves; the next call must set aside the run and create a new one."""
    replace, files = os.replace, None
    for moves in range(20):
        place = tmp_path / str(moves)
        place.mkdir()
        copy = place / "params.yaml"
        copy.write_text(params.read_text())
        run = started_run(place, copy)
        old = run.read_identity()["run_id"]
        files = {path.name for path in run.path.iterdir()} - {"lock", ".driver"}
        edit(copy, seed=5)
        remaining = [moves]
        files.discard("set_aside")

        def failing(source: Any, target: Any, remaining: list[int] = remaining) -> None:
            if "set_aside" in str(target):
                if remaining[0] == 0:
                    raise KeyboardInterrupt
                remaining[0] -= 1
            replace(source, target)

        monkeypatch.setattr(os, "replace", failing)
        try:
            follow_params(str(run.path), str(copy), [], "train")
            ended = True
        except KeyboardInterrupt:
            ended = False
        monkeypatch.setattr(os, "replace", replace)
        follow_params(str(run.path), str(copy), [], "train")
        aside = {path.name for path in (run.path / "set_aside" / old).iterdir()}
        assert aside == files
        assert RunDirectory(run.path / "set_aside" / old).read_identity()["run_id"] == old
        assert config_of(run).seed == 5
        if ended:
            return
    raise AssertionError("the moves did not come to an end")
