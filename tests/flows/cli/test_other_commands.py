"""Translation of command lines of SheepRL, Hydra and Lightning to commands of Shepherd."""

from __future__ import annotations

import json
import os

import pytest

from flows.cli import main as cli
from flows.cli.other_commands import translate
from flows.config.yaml_files import VARIABLES
from rlcore.errors import UserError

# All forms in SheepRL's documentation, from its first version (arguments) to 0.8 (Hydra overrides).
TRANSLATIONS = [
    ("ppo --env_id CartPole-v1", "train exp=ppo env.id=CartPole-v1"),
    ("sheeprl.py ppo --env_id CartPole-v1 --num_envs 8", "train exp=ppo env.id=CartPole-v1 env.num_envs=8"),
    ("python sheeprl.py a2c --seed=3 --lr 1e-3", "train exp=a2c seed=3 algo.optimizer.lr=1e-3"),
    ("ppo --anneal_lr --no_sync_env", "train exp=ppo algo.anneal_lr=true env.sync_env=false"),
    ("ppo --anneal_lr True --mask_vel", "train exp=ppo algo.anneal_lr=True env.mask_velocities=true"),
    ("ppo --mlp_keys a b --gamma 0.9", "train exp=ppo 'algo.mlp_keys.encoder=[a,b]' algo.gamma=0.9"),
    ("ppo --max_episode_steps -1 --dense_units 32", "train exp=ppo env.max_episode_steps=null algo.dense_units=32"),
    ("ppo --actor_hidden_size 8 --checkpoint_every 100", "train exp=ppo algo.actor.dense_units=8 checkpoint.every=100"),
    (
        "sac --actor_hidden_size 8 --critic_hidden_size=9",
        "train exp=sac algo.actor.hidden_size=8 algo.critic.hidden_size=9",
    ),
    ("sac_pendulum --actor_hidden_size 8", "train exp=sac_pendulum algo.actor.hidden_size=8"),
    ("--exp ppo", "train exp=ppo"),
    ("--exp=sac --env gym --critic_hidden_size 8", "train exp=sac env=gym algo.critic.hidden_size=8"),
    ("train --exp ppo --num_envs 8", "train exp=ppo env.num_envs=8"),
    ("sac --env_id Pendulum-v1", "train exp=sac env.id=Pendulum-v1"),
    ("dreamer_v3 --seed 1", "train exp=dreamer_v3 seed=1"),  # unsupported, refused later
    ("sheeprl.py ppo -h", "train exp=ppo -h"),
    ("sheeprl.py --sheeprl_help", "agents"),
    ("--sheeprl_help", "agents"),
    (
        "lightning run model --accelerator=cpu --strategy=ddp --devices=2 sheeprl.py ppo --env_id CartPole-v1",
        "train exp=ppo env.id=CartPole-v1 fabric.accelerator=cpu fabric.strategy=ddp fabric.devices=2",
    ),
    ("lightning run model --devices 2 --node-rank 0 ppo", "train exp=ppo fabric.devices=2"),
    ("fabric run --accelerator=cuda --num-nodes 1 sheeprl.py exp=ppo", None),
    ("sheeprl exp=ppo", "train exp=ppo"),
    ("python -m sheeprl exp=ppo", "train exp=ppo"),
    ("python -u -m sheeprl exp=ppo", "train exp=ppo"),
    ("sheeprl.py exp=ppo env=gym env.id=Acrobot-v1", "train exp=ppo env=gym env.id=Acrobot-v1"),
    ("exp=ppo env.id=Acrobot-v1", "train exp=ppo env.id=Acrobot-v1"),
    ("train ppo", "train exp=ppo"),
    ("sheeprl exp=ppo --cfg job --resolve", "config exp=ppo"),
    ("train exp=ppo --cfg=job", "config exp=ppo"),
    ("exp=ppo -c job -p algo", "config exp=ppo"),
    ("sheeprl --info", "train --help"),
    ("sheeprl --hydra-help", "train --help"),
    ("sheeprl -r exp=ppo", "train exp=ppo"),
    ("-m exp=ppo seed=1,2 group=g", "train exp=ppo seed=1,2 group=g"),
    ("sheeprl-eval checkpoint_path=runs/a", "evaluate runs/a"),
    ("sheeprl_eval.py checkpoint_path=runs/a env.capture_video=True", "evaluate runs/a --video"),
    ("evaluate checkpoint_path=runs/a env.capture_video=False", "evaluate runs/a"),
    ("evaluate runs/a env.capture_video=True --episodes 5", "evaluate runs/a --video --episodes 5"),
    ("checkpoint_path=runs/a", "evaluate runs/a"),
    ("enjoy checkpoint_path=runs/a", "enjoy runs/a"),
    ("sheeprl-agents", "agents"),
    ("python available_agents.py", "agents"),
]
FABRIC = "train exp=ppo fabric.accelerator=cuda fabric.num_nodes=1"


@pytest.mark.parametrize(("typed", "ours"), TRANSLATIONS, ids=[typed for typed, _ in TRANSLATIONS])
def test_translate_converts_lines_of_other_tools(typed, ours):
    assert str(translate(typed.split())) == f"shepherd {ours or FABRIC}"


# Refused line, and a part of the error message.
REFUSED = [
    ("sheeprl -m exp=ppo", "`shepherd train exp=ppo seed=1,2,3 group=NAME`"),
    ("train -m exp=ppo env.id=CartPole-v1,Acrobot-v1", "env.id=CartPole-v1,Acrobot-v1 group=NAME`"),
    ("train -cn mine", "exp=NAME"),
    ("train --experimental-rerun x", "shepherd resume RUN"),
    ("train exp=ppo sweep.trials=3", "`shepherd sweep exp=ppo sweep.trials=3`"),
    ("train sweep=ppo", "`shepherd sweep sweep=ppo`"),
    ("sheeprl-eval checkpoint_path=logs/version_0/checkpoint/ckpt_100_0.ckpt", "runs/a/checkpoints/8192"),
    ("train exp=ppo checkpoint.resume_from=ckpt_100_0.ckpt", "checkpoint.resume_from=runs/a/checkpoints/8192"),
    ("evaluate runs/a algo.gamma=0.9", "algo.gamma=0.9: an evaluation uses the config of its run"),
    ("sheeprl-registration checkpoint_path=nowhere", "`shepherd stage register-model RUN`"),
    ("sheeprl-registration", "`shepherd stage register-model RUN`"),
    ("python train.py exp=mine", "`shepherd train exp=mine`"),
    ("python -u x.py exp=mine", "x.py: shepherd does not run scripts"),
    ("python3 -B -W ignore -u x.py", "x.py: shepherd does not run scripts"),
    ("fabric run --gpus 2 exp=ppo", "--gpus"),
]


@pytest.mark.parametrize(("typed", "part"), REFUSED, ids=[typed for typed, _ in REFUSED])
def test_translate_refuses_line_and_names_replacement(typed, part):
    with pytest.raises(UserError) as caught:
        translate(typed.split())
    assert part in str(caught.value)


@pytest.fixture
def run(tmp_path):
    """Folder with the layout of a run with two checkpoints."""
    for number in (4096, 8192):
        (tmp_path / "runs/a/checkpoints" / str(number)).mkdir(parents=True)
        (tmp_path / "runs/a/checkpoints" / str(number) / "manifest.json").write_text("{}")
    (tmp_path / "runs/a/run.json").write_text(json.dumps({"run_id": "0"}))
    return tmp_path / "runs/a"


@pytest.mark.parametrize("name", ["checkpoints/4096.ckpt", "version_0/checkpoint/ckpt_4096_0.ckpt"])
def test_translate_maps_ckpt_file_to_checkpoint(run, name):
    folder = run / "checkpoints/4096"
    assert translate(["sheeprl", f"checkpoint.resume_from={run / name}"]).words[1] == f"checkpoint.resume_from={folder}"
    assert translate(["ppo", "--checkpoint_path", f"{run / name}"]).words[2] == f"checkpoint.resume_from={folder}"
    assert translate(["sheeprl-eval", f"checkpoint_path={run / name}"]).words == ["evaluate", str(folder)]


def test_translate_lists_checkpoints_if_ckpt_is_missing(run):
    with pytest.raises(
        UserError, match=r"runs/a: no checkpoint 512; choose latest, best or one of 8192, 4096"
    ) as error:
        translate(["train", "exp=ppo", f"checkpoint.resume_from={run}/checkpoints/512.ckpt"])
    assert "--checkpoint" not in str(error.value)


def test_translate_maps_sheeprl_registration_to_stage(run):
    words = translate(["sheeprl-registration", f"checkpoint_path={run}", "model_manager=ppo"]).words
    assert words == ["stage", "register-model", str(run)]


def test_translate_names_ignored_evaluation_settings():
    line = translate(["sheeprl-eval", "checkpoint_path=runs/a", "fabric.accelerator=gpu", "seed=3"])
    assert line.words == ["evaluate", "runs/a"]
    assert "ignored: fabric.accelerator=gpu seed=3;" in str(line)


def test_main_prints_and_runs_translated_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLES[0], "")
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "my configs" / "exp" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("# @package _global_\ndefaults: [ppo, _self_]\nseed: 7\n")
    assert cli.main(["sheeprl", "--config-dir=my configs", "exp=mine", "--cfg", "job"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "shepherd: interpreted as: SHEPHERD_SEARCH_PATH='my configs' shepherd config exp=mine\n"
    assert "seed: 7" in printed.out
    assert os.environ[VARIABLES[0]] == "my configs"


def test_translate_suggests_fabric_run_options_as_overrides(monkeypatch):
    """`fabric run` sets LT_CLI_USED and one LT_ variable per option, and always those for devices and nodes."""
    for name, value in {"CLI_USED": "1", "ACCELERATOR": "cuda", "DEVICES": "1", "NUM_NODES": "1"}.items():
        monkeypatch.setenv(f"LT_{name}", value)
    monkeypatch.setenv("LT_PRECISION", "bf16-mixed")
    with pytest.raises(UserError, match="`shepherd train exp=ppo fabric.accelerator=cuda fabric.precision=bf16-mixed`"):
        translate(["train", "exp=ppo"])
