"""A script of the user's own with SheepRL's `run`: which run is made; training itself is left out."""

from __future__ import annotations

import sys

import pytest

from flows import main, run
from flows.config.compose import compose
from rlcore.errors import UserError


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """The runs that would be trained, and a folder to make them in."""
    from flows import train

    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "run_flow", runs.append)
    return runs


def started_with(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])


def test_run_alone_takes_the_command_line_in_any_spelling(trained, monkeypatch, capsys):
    started_with(monkeypatch, "ppo", "--num_envs", "2", "run_dir=runs/a")
    run()
    assert trained[0].read_config()["env"]["num_envs"] == 2
    line = "this stands for: shepherd train exp=ppo env.num_envs=2 run_dir=runs/a\n"
    assert capsys.readouterr().err == line


def test_main_hands_over_a_whole_config_and_what_the_function_changes_is_trained(trained, monkeypatch, capsys):
    @main
    def train(cfg):
        assert cfg.algo.clip_coef == 0.2
        cfg.seed = 9
        return run(cfg)

    started_with(monkeypatch, "exp=ppo", "run_dir=runs/b")
    train()
    assert (
        trained[0].read_config() | {"seed": 42}
        == compose(["exp=ppo", "run_dir=runs/b", f"run_name={name(trained)}"])[1]
    )
    assert trained[0].read_config()["seed"] == 9
    assert trained[0].overrides.read_text().split() == ["exp=ppo", "run_dir=runs/b"]
    assert capsys.readouterr().err == ""  # the line would be another training


def name(trained):
    return trained[0].read_config()["run_name"]


def test_a_config_that_hydra_has_put_together_is_checked_like_any_other(trained):
    _, tree = compose(["exp=ppo", "run_dir=runs/c"])
    tree["fabric"]["_target_"] = "lightning.fabric.Fabric"
    tree["root_dir"] = "${algo.name}/here"
    run(tree)
    assert trained[0].read_config()["root_dir"] == "ppo/here"
    tree["algo"]["gama"] = 1
    with pytest.raises(UserError, match="algo.gama"):
        run(tree)
