"""Plan of a sweep from its overrides, and refused overrides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config.compose import compose
from flows.sweeps.creating import check_plan, points
from flows.sweeps.folder import SweepFolder, refuse_password
from flows.sweeps.jobs import trial_overrides
from flows.sweeps.plan import SweepConfig, change, merge, plan, presets
from rlcore.algorithms import ALGORITHMS
from rlcore.config.schema import arguments
from rlcore.config.values import plain, spell
from rlcore.errors import UserError
from tests.processes import ROOT, environment

LR = "algo.optimizer.lr=interval(1e-4,1e-3)"
CALLBACKS = "callbacks=[tests.probes.callbacks:Recorder]"


def error_of(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        check_plan(plan(overrides))
    return str(error.value)


@pytest.mark.parametrize(
    ("chosen", "logger"), [([], "mlflow"), (["logger=csv"], "csv"), (["metric.logger.name=none"], "none")]
)
def test_trials_log_to_chosen_logger(chosen: list[str], logger: str) -> None:
    overrides = trial_overrides(["exp=ppo", *chosen], SweepConfig())
    assert compose(overrides)[0].metric.logger.name == logger


def test_every_algorithm_has_sweep_preset() -> None:
    assert set(ALGORITHMS) <= set(presets())


@pytest.mark.parametrize("preset", presets())
def test_check_plan_accepts_every_preset(preset: str) -> None:
    sweep_plan = plan([f"sweep={preset}"])
    if preset.endswith("_finetuning"):  # needs an exploration run
        with pytest.raises(UserError, match="init_from is required"):
            check_plan(sweep_plan)
        return
    config = check_plan(sweep_plan).first
    assert config.algo.total_steps == sweep_plan.config.budget
    assert preset.startswith(config.algo.name)


def test_plan_override_wins_over_preset() -> None:
    sweep_plan = plan(["sweep=ppo_cartpole", "env.id=Acrobot-v1", "algo.total_steps=512", "sweep.trials=3", LR])
    assert "env.id=Acrobot-v1" in sweep_plan.base
    assert [line for line in sweep_plan.base if line.startswith("algo.total_steps")] == ["algo.total_steps=512"]
    assert sweep_plan.config.trials == 3
    by_key = {dimension.key: dimension for dimension in sweep_plan.space}
    assert by_key["algo.optimizer.lr"].written == "interval(1e-4,1e-3)"
    assert len(by_key) == len(sweep_plan.space)


def test_plan_override_fixes_varied_key() -> None:
    sweep_plan = plan(["sweep=ppo_cartpole", "algo.gae_lambda=0.9"])
    assert "algo.gae_lambda" not in {dimension.key for dimension in sweep_plan.space}
    assert "algo.gae_lambda=0.9" in sweep_plan.base


def test_plan_keeps_default_of_varied_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep").mkdir()
    text = "overrides: [exp=ppo, algo.gamma=0.5]\nspace: {algo.gamma: {type: float, low: 0.9, high: 1}}\n"
    (tmp_path / "sweep/mine.yaml").write_text(text)
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    sweep_plan = plan(["sweep=mine"])
    assert sweep_plan.base == ["exp=ppo", "algo.gamma=0.5"]
    assert [dimension.key for dimension in sweep_plan.space] == ["algo.gamma"]
    assert check_plan(sweep_plan).first.algo.gamma == 0.9


def test_plan_varies_any_config_key() -> None:
    lines = ["env.num_envs=choice(2,4)", "optim=choice(adam,rmsprop)", "evaluation.episodes=interval(1,3)"]
    sweep_plan = plan(["exp=ppo", *lines])
    check_plan(sweep_plan)
    assert [dimension.key for dimension in sweep_plan.space] == ["env.num_envs", "optim", "evaluation.episodes"]


def test_points_include_every_bound_and_choice() -> None:
    sweep_plan = plan(["exp=ppo", LR, "algo.rollout_steps=choice(32,64,128)"])
    tried = list(points(sweep_plan.space))
    assert {point["algo.optimizer.lr"] for point in tried} == {1e-4, 1e-3}
    assert {point["algo.rollout_steps"] for point in tried} == {32, 64, 128}


def test_check_plan_accepts_presets_of_one_task() -> None:
    sweep_plan = plan(["exp=choice(ppo,ppo_acrobot)", "env.id=Acrobot-v1", "sweep.confirm_seeds=0"])
    assert check_plan(sweep_plan).first.env.id == "Acrobot-v1"


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["sweep=ppo_cartpol"], ["sweep=ppo_cartpol", "'ppo_cartpole'"]),
        (["exp=ppo"], ["no key is varied"]),
        (["exp=ppo", LR, "sweep.trails=3"], ["sweep.trails", "'sweep.trials'"]),
        (["exp=ppo", LR, "sweep.trials=many"], ["sweep.trials=many", "integer"]),
        (["exp=ppo", LR, "sweep.trials="], ["sweep.trials=", "the value is missing"]),
        (["exp=ppo", LR, "sweep.sampler=tpa"], ["sweep.sampler=tpa", "'tpe'"]),
        (["exp=ppo", LR, "sweep.name=a/b"], ["sweep.name=a/b"]),
        (["exp=ppo", LR, "seed=3"], ["seed", "sweep.seed"]),
        (["exp=ppo", LR, "run_dir=x"], ["run_dir", "sweep.name"]),
        (["exp=ppo", "seed=1,2"], ["seed", "sweep.seed"]),
        (["exp=ppo", "algo.gamma=interval(0.9,1.5)"], ["algo.gamma=1.5", "<= 1", "interval(0.9,1.5)"]),
        (["exp=ppo", "algo.gama=interval(0.9,1)"], ["algo.gama", "'algo.gamma'"]),
        (["exp=ppo", "env.id=choice(CartPole-v1,CartPool-v1)"], ["CartPool-v1"]),
        (["exp=ppo", "algo.dense_act=choice(tanh,rleu)"], ["algo.dense_act=rleu", "'relu'", "choice(tanh,rleu)"]),
        (["exp=ppo", LR, "sweep.workers=9"], ["sweep.workers=9", "sweep.batch=9", "sweep.mode=async"]),
        (["exp=ppo", LR, "sweep.sampler=grid"], ["algo.optimizer.lr", "grid"]),
        (
            ["exp=choice(ppo,ppo_acrobot)"],
            ["exp=ppo_acrobot", "task is Acrobot-v1, but", "is CartPole-v1;", "one sweep for each"],
        ),
        (["exp=ppo", LR, "env.id=choice(CartPole-v1,Acrobot-v1)"], ["env.id=Acrobot-v1", "env.id is varied"]),
        (["exp=ppo", "env.max_episode_steps=interval(100,200)"], ["(max_episode_steps=200)"]),
        (["exp=ppo", "env.id=choice(Acrobot-v1)"], ["the default configuration: its task is CartPole-v1"]),
        (
            ["exp=ppo", LR, "sweep.metric=won", "env.info_keys=[one]"],
            ["sweep.metric=won: must be return, a number that env.info_keys selects, or a", "did you mean 'one'?$"],
        ),
        (
            ["exp=ppo", LR, "sweep.metric=speed", "env.info_keys=[won]"],
            ["; add env.info_keys=[won,speed] if info contains it, or callbacks=[…] if a callback logs it$"],
        ),
        (
            ["exp=ppo", LR, "sweep.metric=Game/one", "env.info_keys=[one]", CALLBACKS],
            ["sweep.metric=Game/one: must be the name without its prefix; set sweep.metric=one"],
        ),
        (
            ["exp=ppo", LR, "sweep.metric=Loss/policy_loss", CALLBACKS],
            ["sweep.metric=Loss/policy_loss: must be return, a number", "that a callback logs in on_evaluation$"],
        ),
        (
            ["exp=ppo", LR, "sweep.metric=Mine/evaluation", "sweep.objective=final", CALLBACKS],
            [
                "sweep.objective=final: callbacks are not called after the final",
                "cannot log Mine/evaluation",
            ],
        ),
        (
            ["exp=ppo", LR, "sweep.metric=Mine/evaluation", "metric.log_level=0", CALLBACKS],
            ["metric.log_level=0: Mine/evaluation (sweep.metric) would not be logged"],
        ),
        (["exp=ppo", LR, "evaluation.every=100000000"], ["evaluation.every", "would have no value to optimize"]),
    ],
)
def test_check_plan_refuses_mistake(overrides: list[str], messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if CALLBACKS in overrides:
        monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.probes.callbacks")
    error = error_of(*overrides)
    assert all(message in f"{error}$" for message in messages), error  # $ is the end


def test_check_plan_accepts_metric_of_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.probes.callbacks")
    first, _ = check_plan(plan(["exp=ppo", LR, "sweep.metric=Mine/evaluation", CALLBACKS]))
    assert first.callbacks


def test_change_refuses_settings_that_affect_trials() -> None:
    config = plan(["exp=ppo", LR]).config
    assert change(config, ["sweep.trials=99", "sweep.workers=1"]).trials == 99
    for override in ("sweep.seed=3", "sweep.sampler=random", "algo.gamma=0.9"):
        with pytest.raises(UserError, match=r"resumed; only sweep.trials, sweep.workers, sweep.confirm_seeds can\."):
            change(config, [override])


def test_sweep_folder_reads_written_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    sweep_plan = plan(["sweep=ppo_cartpole", "sweep.name=kept", "algo.mlp_keys.encoder=choice([state],[a,b])"])
    folder = SweepFolder("kept")
    folder.write(sweep_plan, tmp_path / "runs")
    assert folder.read() == sweep_plan
    before = folder.id
    folder.write(sweep_plan, tmp_path / "runs")
    assert folder.id == before


def test_sweep_folder_refuses_sweep_of_first_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    folder = SweepFolder("old")
    folder.write(plan(["exp=ppo", LR, "sweep.name=old"]), tmp_path / "runs")
    note = json.loads(folder.plan_file.read_text())
    folder.plan_file.write_text(json.dumps({key: value for key, value in note.items() if key != "format"}))
    with pytest.raises(UserError, match="sweep.json: this sweep was written by Shepherd 0.1.0, which this"):
        folder.read()


def test_sweep_folder_finds_sweep_of_another_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "shared"))
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "a"))
    SweepFolder("both").write(sweep_plan := plan(["exp=ppo", LR, "sweep.name=both"]), tmp_path / "shared/sweeps/both")
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "b"))
    assert SweepFolder.existing("both").read() == sweep_plan
    assert SweepFolder.existing(f"{tmp_path}/shared/sweeps/both/").read() == sweep_plan, "by the folder of its runs"


def test_creating_does_not_import_prefect(tmp_path: Path) -> None:
    """An import of Prefect creates Prefect's folder."""
    script = "import sys; from flows.sweeps import creating; print('prefect' in sys.modules)"
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, text=True, env=environment(tmp_path)) == "False\n"


def test_new_sweep_reuses_sweep_with_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from flows.sweeps.creating import new_sweep

    overrides = ["exp=ppo", LR, "sweep.name=again"]
    _, folder = new_sweep(overrides)
    before = folder.id
    assert new_sweep([*overrides, "sweep.trials=50"])[1].id == before
    assert folder.read().config.trials == 50
    for other, message in (("sweep.seed=7", "sweep.seed=7"), ("algo.gamma=0.9", "other overrides")):
        with pytest.raises(UserError, match=message):
            new_sweep([*overrides, other])


def test_new_sweep_recognizes_shared_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine with the same run folder resumes the sweep, but refuses other settings."""
    monkeypatch.chdir(tmp_path)
    from flows.sweeps.creating import new_sweep

    overrides = ["exp=ppo", LR, "sweep.name=shared"]
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "one"))
    first = new_sweep(overrides)[1].id
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "other"))
    with pytest.raises(UserError, match="other overrides"):
        new_sweep([*overrides, "algo.gamma=0.9"])
    assert new_sweep(overrides)[1].id == first


def test_refuse_password_rejects_password_in_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    hidden = plan(["exp=ppo", LR, "sweep.storage=postgresql+psycopg2://me:secret@db/optuna"])
    with pytest.raises(UserError) as error:
        refuse_password(hidden)
    assert "SHEPHERD_SWEEP_STORAGE" in str(error.value) and "secret" not in str(error.value)
    refuse_password(plan(["exp=ppo", LR, "sweep.storage=postgresql+psycopg2://me@db/optuna"]))


@pytest.mark.parametrize(
    ("overrides", "message_end"),
    [
        (["algo.gammma=3", LR], "did you mean 'algo.gamma'?"),  # the varied key is not named
        (["algo.gamma=7", LR], "must be a number that is > 0 and <= 1"),
        (["algo.gama=interval(0.9,1)", LR], "(algo.gama is varied: interval(0.9,1))"),
        (["algo.gamma=interval(0.9,3)", LR], "(algo.gamma is varied: interval(0.9,3))"),
    ],
)
def test_check_plan_message_names_only_related_keys(overrides: list[str], message_end: str) -> None:
    assert error_of("exp=ppo", *overrides).endswith(message_end)


def test_merge_replaces_by_key() -> None:
    assert merge(["a=1", "+b.c=2", "d=3"], ["b.c=4", "a=5"]) == ["d=3", "b.c=4", "a=5"]


def test_docs_list_every_sweep_key_and_default() -> None:
    document = (ROOT / "docs/sweeps.md").read_text()
    for argument in arguments(SweepConfig, "sweep."):
        value = plain(argument.default)
        default = f"`{spell(value)}`" if value not in ("", [], {}) else "–"
        assert f"| `{argument.key}` | {default} |" in document, argument.key
