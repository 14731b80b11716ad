"""Scripts that call SheepRL's `run`: their config, their run, and their plugins in the trainer."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import gymnasium
import pytest
from omegaconf import OmegaConf

from flows import evaluation, main, run
from flows.cli import script
from flows.config.compose import compose, compose_for_script, compose_tree
from flows.runs.script_plugins import name_plugins
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from tests.processes import NO_STORE, TINY, environment
from tests.stores import furnish, standing_api


@pytest.fixture
def started_runs(tmp_path, monkeypatch):
    """Record the runs instead of training them, in an empty working directory."""
    from flows import train

    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "run_flow", lambda run: runs.append(run) or {})
    return runs


def set_argv(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])


def test_run_translates_command_line_of_script(started_runs, monkeypatch, capsys):
    set_argv(monkeypatch, "ppo", "--num_envs", "2", "run_dir=runs/a")
    run()
    assert started_runs[0].read_config()["env"]["num_envs"] == 2
    line = "interpreted as: shepherd train exp=ppo env.num_envs=2 run_dir=runs/a\n"
    assert capsys.readouterr().err == line


def test_main_passes_config_that_function_may_change(started_runs, monkeypatch, capsys):
    @main
    def train(cfg):
        assert cfg.algo.clip_coef == 0.2
        cfg.seed = 9
        return run(cfg)

    set_argv(monkeypatch, "exp=ppo", "run_dir=runs/b")
    train()
    assert (
        started_runs[0].read_config() | {"seed": 42}
        == compose(["exp=ppo", "run_dir=runs/b", f"run_name={run_name(started_runs)}"])[1]
    )
    assert started_runs[0].read_config()["seed"] == 9
    assert started_runs[0].overrides.read_text().split() == ["exp=ppo", "run_dir=runs/b"]
    assert capsys.readouterr().err == ""  # no command line is printed, because the function changed the config


def run_name(started_runs):
    return started_runs[0].read_config()["run_name"]


def test_run_validates_config_composed_by_hydra(started_runs):
    _, tree = compose(["exp=ppo", "run_dir=runs/c"])
    tree["fabric"]["_target_"] = "lightning.fabric.Fabric"
    tree["root_dir"] = "${algo.name}/here"
    run(tree)
    assert started_runs[0].read_config()["root_dir"] == "ppo/here"
    tree["algo"]["gama"] = 1
    with pytest.raises(UserError, match="algo.gama"):
        run(tree)


# --- config of a script -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "key", "target"),
    [
        ("ppo", "env.wrapper", "gymnasium.make"),
        ("ppo_atari", "env.wrapper", "gymnasium.wrappers.AtariPreprocessing"),
        ("sac_dmc_cartpole_balance", "env.wrapper", "sheeprl.envs.dmc.DMCWrapper"),
        ("dreamer_v3_L_doapp", "env.wrapper", "sheeprl.envs.diambra.DiambraWrapper"),
        ("ppo", "algo.optimizer", "torch.optim.Adam"),
        ("ppo_recurrent", "algo.optimizer", "torch.optim.AdamW"),
        ("dreamer_v3", "algo.world_model.optimizer", "torch.optim.Adam"),
        ("ppo", "fabric", "lightning.fabric.Fabric"),
        ("ppo", "metric.aggregator", "sheeprl.utils.metric.MetricAggregator"),
        ("ppo", "metric.logger", "lightning.fabric.loggers.TensorBoardLogger"),
    ],
)
def test_compose_for_script_names_sheeprl_classes(preset, key, target):
    cfg = compose_for_script([f"exp={preset}"])
    assert OmegaConf.select(cfg, key)["_target_"] == target
    seen = cfg.run_name
    assert compose_tree(cfg)[1] == compose([f"exp={preset}", f"run_name={seen}"])[1]


def test_compose_for_script_keeps_interpolations():
    cfg = compose_for_script(["exp=ppo", "algo.dense_units=16"])
    assert cfg.algo.encoder.dense_units == cfg["algo"]["encoder"]["dense_units"] == 16
    assert cfg.fabric.callbacks[0]._target_ == "sheeprl.utils.callback.CheckpointCallback"
    cfg.algo.dense_units = 8
    assert cfg.algo.actor.dense_units == 8
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert compose_tree(plain) == compose_tree(cfg)


def test_compose_tree_keeps_run_name_from_script(monkeypatch):
    OmegaConf.clear_resolver("now")  # Hydra's, if an earlier test of this process has used Hydra
    cfg = compose_for_script(["exp=ppo"])
    read = cfg.run_name

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=1)

    monkeypatch.setattr("flows.config.yaml_files.datetime", Later)
    assert compose(["exp=ppo"])[0].run_name != read
    assert compose_tree(cfg)[0].run_name == read


def test_compose_for_script_accepts_name_or_target(tmp_path, monkeypatch):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "theirs.yaml").write_text("_target_: torch.optim.SGD\nlr: 1e-3\n")
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", str(tmp_path))
    cfg = compose_for_script(["exp=ppo", "optim@algo.optimizer=theirs"])
    assert (cfg.algo.optimizer.name, cfg.algo.optimizer._target_) == ("sgd", "torch.optim.SGD")
    cfg.algo.optimizer.name = "adamw"
    assert cfg.algo.optimizer._target_ == "torch.optim.AdamW"
    assert compose_tree(cfg)[0].algo.optimizer.name == "adamw"
    cfg.algo.optimizer._target_ = "torch.optim.RMSprop"
    assert compose_tree(cfg)[0].algo.optimizer.name == "rmsprop"
    cfg.env.id, cfg.metric.logger.name = "PongNoFrameskip-v4", "none"
    assert cfg.env.wrapper._target_ == "gymnasium.wrappers.AtariPreprocessing"
    assert compose_tree(cfg)[0].metric.logger.name == "none"


def test_compose_prefers_name_override_to_file_target(tmp_path, monkeypatch):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "theirs.yaml").write_text("_target_: torch.optim.SGD\nlr: 1e-3\n")
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", str(tmp_path))
    config, _ = compose(["exp=ppo", "optim@algo.optimizer=theirs", "algo.optimizer.name=adamw"])
    assert config.algo.optimizer.name == "adamw"


def test_main_exits_script_with_one_sentence(started_runs, monkeypatch, capsys):
    set_argv(monkeypatch, "exp=ppo", "algo.gama=1")
    with pytest.raises(SystemExit) as ended:
        main(run)()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("shepherd: unknown key 'algo.gama' (value '1'); did you mean ")
    with pytest.raises(UserError, match="config_name=configs: must be config, or eval_config"):
        main(config_name="configs")(run)


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["checkpoint_path=runs/a"], ["checkpoint_path=runs/a", "env.capture_video=true"]),
        (
            ["env.capture_video=False", "fabric.device=cuda", "checkpoint_path=runs/a/ckpt_8_0.ckpt"],
            ["checkpoint_path=runs/a/ckpt_8_0.ckpt", "env.capture_video=false"],
        ),
    ],
)
def test_evaluation_runs_evaluate_command_on_checkpoint(monkeypatch, typed, expected):
    commands: list[list[str]] = []
    monkeypatch.setattr(script, "command", lambda words: commands.append(words) or 0)
    set_argv(monkeypatch, *typed)
    main(config_name="eval_config")(evaluation)()
    assert commands == [["evaluate", *expected, "--episodes", "100"]]


def test_evaluation_requires_checkpoint_path(monkeypatch, capsys):
    set_argv(monkeypatch)
    with pytest.raises(SystemExit):
        main(config_name="eval_config")(evaluation)()
    assert "checkpoint_path is required" in capsys.readouterr().err


# --- environments of a script -----------------------------------------------------------------------------------------

SCRIPT = """\
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from flows import main, run


class Mine(CartPoleEnv):
    pass


{before}gymnasium.register("{env_id}", entry_point={entry}, max_episode_steps=50)


@main
def train(cfg):
    run(cfg)


{guard}train()
"""
GUARD = 'if __name__ == "__main__":\n    '


def run_script(folder: Path, *words: str, **parts: str) -> subprocess.CompletedProcess[str]:
    """Run a script that registers Mine-v0 and trains on it."""
    values = {"before": "", "env_id": "Mine-v0", "entry": "Mine", "guard": GUARD} | parts
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "own_training.py").write_text(SCRIPT.format(**values))
    command = [sys.executable, "scripts/own_training.py", *TINY, "env.id=Mine-v0", "run_dir=mine", *words]
    variables = environment(folder, **NO_STORE, **standing_api())
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.slow
def test_run_trains_on_environment_registered_by_script(tmp_path):
    furnish(tmp_path)
    done = run_script(tmp_path, "algo.total_steps=64", "model_manager.disabled=true", "algo.compile=false")
    assert done.returncode == 0, done.stderr[-3000:]
    named = "env.id=Mine-v0: trained with plugins=[own_training]; commands on this run need plugins=[own_training] too"
    assert named in done.stderr.splitlines()
    mine = RunDirectory(tmp_path / "mine")
    assert mine.read_config()["plugins"] == ["own_training"]
    assert mine.read_summary()["policy_steps"] == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"guard": ""}, "this script starts a run when it is imported; put the call into a block"),
        ({"before": GUARD}, "registered in this process only, but a run is trained in another process"),
        (
            {"before": GUARD, "entry": "'gymnasium.envs.classic_control:CartPoleEnv'"},
            "registered in this process only, but a run is trained in another process",
        ),
    ],
)
def test_run_refuses_environment_unknown_to_trainer(tmp_path, parts, sentence):
    done = run_script(tmp_path, **parts)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("shepherd: env.id=Mine-v0: registered") and sentence in line
    assert not (tmp_path / "mine").exists() and not (tmp_path / ".shepherd" / "prefect").exists()


def test_name_plugins_starts_no_process_for_known_environments(monkeypatch):
    monkeypatch.setattr("flows.runs.script_plugins.spawn", None)
    for words in (["exp=ppo"], ["exp=ppo", "env.id=CartPole-v0"], ["exp=dreamer_v3_crosshair"]):
        assert name_plugins(compose(words)[0]) == []
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")
    gymnasium.register("Probe-v0", entry_point="tests.rlcore.envs.probe_envs:Any")
    try:
        assert name_plugins(compose(["exp=ppo", "env.id=Probe-v0"])[0]) == []
    finally:
        del gymnasium.registry["Probe-v0"]
