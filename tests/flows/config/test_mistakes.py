"""Mistakes in configs: one sentence names key, value and nearest match; nothing is imported or run."""

from __future__ import annotations

import copy
import re
import sys

import pytest

from flows.config import yaml_files
from flows.config.compose import compose
from flows.config.mistakes import ABSENT_KEYS, refuse_absent_keys
from flows.runs.create import new_run
from rlcore.errors import UserError
from rlcore.run_config import build_config


@pytest.fixture(scope="module")
def cache():
    return {}


@pytest.fixture
def cached_files(cache, monkeypatch):
    """Read the built-in files only once for all rows of a table."""
    load = yaml_files.load

    def cached_load(choices, groups):
        if tuple(choices) not in cache:
            cache[tuple(choices)] = load(choices, groups)
        return copy.deepcopy(cache[tuple(choices)])

    monkeypatch.setattr(yaml_files, "load", cached_load)


def error_message(overrides):
    with pytest.raises(UserError) as caught:
        compose(overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    assert "object_type" not in sentence
    return sentence


# Override after exp=ppo, and parts of the error message: key, value, nearest match or allowed values.
MISTAKES = [
    ("algo.gama=0.9", ["algo.gama", "0.9", "gamma'"]),
    ("algo.clip_coeff=0.1", ["algo.clip_coeff", "0.1", "clip_coef'"]),
    ("algo.optimizer.weight_decy=1", ["algo.optimizer.weight_decy", "1", "weight_decay'"]),
    ("algo.actor.dense_unit=8", ["algo.actor.dense_unit", "8", "dense_units'"]),
    ("env.idd=CartPole-v1", ["env.idd", "CartPole-v1", "id'"]),
    ("env.number_envs=3", ["env.number_envs", "3", "num_envs'"]),
    ("total_steps=100", ["total_steps", "100"]),
    ("sed=1", ["'sed'", "'1'", "'seed'"]),
    ("algos=ppo", ["'algos'", "'ppo'", "'algo'"]),
    ("fabrik.accelerator=cuda", ["fabrik.accelerator", "cuda", "'fabric.accelerator'"]),
    ("metric.aggregator.metrics.Loss/value_loss=median", ["Loss/value_loss", "median", "'mean'"]),
    ("metric.logger.name=tensorbord", ["metric.logger.name", "tensorbord", "'tensorboard'"]),
    ("algo.gamma=1.5", ["algo.gamma", "1.5", "<= 1"]),
    ("algo.gamma=high", ["algo.gamma", "high", "number"]),
    ("algo.gamma=nan", ["algo.gamma", "nan", "finite"]),
    ("algo.update_epochs=0", ["algo.update_epochs", "0", ">= 1"]),
    ("algo.update_epochs=2.5", ["algo.update_epochs", "2.5", "integer"]),
    ("algo.clip_vloss=1", ["algo.clip_vloss", "1", "true/false"]),
    ("algo.value_loss=huber", ["algo.value_loss=huber", "mse, smooth_l1"]),
    ("algo.value_loss_cap=0", ["algo.value_loss_cap=0", "> 0"]),
    ("algo.advantage_scope=batch", ["algo.advantage_scope=batch", "minibatch, rollout"]),
    ("algo.reward_scale=batch", ["algo.reward_scale=batch", "running, rollout"]),
    ("algo.shuffle=1", ["algo.shuffle=1", "true/false"]),
    ("algo.accumulate_minibatches=0", ["algo.accumulate_minibatches=0", ">= 1"]),
    ("algo.clip_vloss=yes", ["algo.clip_vloss", "yes", "true/false"]),
    ("algo.dense_act=tanhh", ["algo.dense_act", "tanhh", "'tanh'"]),
    ("algo.optimizer.name=adamm", ["algo.optimizer.name", "adamm", "'adam"]),
    ("algo.optimizer.alpha=0.9", ["algo.optimizer.alpha", "0.9", "adam"]),
    ("algo.mlp_keys.encoder=state", ["algo.mlp_keys.encoder", "state", "list"]),
    ("algo.mlp_keys.encoder=[1]", ["algo.mlp_keys.encoder", "1", "text"]),
    ("algo.cnn_keys.encoder=rgb", ["algo.cnn_keys.encoder", "rgb", "list"]),
    ("algo.compile=fast", ["algo.compile", "fast", "auto"]),
    ("algo.compile.enable=true", ["algo.compile.enable", "true", "'enabled'"]),
    ("algo.ent_coef_schedule=[[10,1],[5,1]]", ["algo.ent_coef_schedule", "[5"]),
    ("algo.encoder=3", ["algo.encoder", "3"]),
    ("seed=-1", ["seed", "-1", ">= 0"]),
    ("seed=true", ["seed", "true", "integer"]),
    ("seed.x=1", ["seed", "integer"]),
    ("seed=", ["seed=", "no value"]),
    ("seed", ["'seed'", "seed=VALUE"]),
    ("seed=1,2", ["seed=1,2", "several values"]),
    ("=1", ["'=1'", "key=value"]),
    ("algo.mlp_keys.encoder=[state", ["algo.mlp_keys.encoder", "[state"]),
    ("env.num_envs=${env.step_timeou}", ["env.num_envs", "${env.step_timeou}", "'env.step_timeout'"]),
    ("buffer.size=${algo.rolout_steps}", ["buffer.size", "${algo.rolout_steps}", "'algo.rollout_steps'"]),
    ("seed=${seed}", ["seed=${seed}", "itself"]),
    ("group=${", ["group=${", "interpolation"]),
    ("group=${oc.env:SHEPHERD_NOT_SET}", ["group", "SHEPHERD_NOT_SET", "not set"]),
    ("group=${eval:1}", ["group", "eval", "no function"]),
    ("buffer.size=7", ["buffer.size", "7", "rollout_steps"]),
    ("env.id=null", ["env.id", "null", "text"]),
    ("evaluation.episodes=1000000000000", ["evaluation.episodes=1000000000000", "<= 1e+06"]),
    ("env.id=???", ["env.id", "required"]),
    ("env=gymm", ["env=gymm", "'gym'"]),
    ("env=minerl", ["env=minerl", "not supported yet"]),
    ("env=null", ["env=null", "gym"]),
    ("env=[gym]", ["env=[gym]", "gym"]),
    ("~env", ["~env", "gym"]),
    ("~algo.gama", ["~algo.gama", "'algo.gamma'"]),
    ("logger=csvv", ["logger=csvv", "'csv'"]),
    ("logger@metric.log=csv", ["logger@metric.log"]),
    ("optim=adan", ["optim=adan", "'adam'"]),
    ("fabric.devices=0", ["fabric.devices=0", "must be a positive integer", "or a list of GPU indices, as [0,1]"]),
    ("fabric.devices=[1]", ["fabric.devices=[1]: a list of GPUs needs fabric.accelerator=cuda; set it", "devices=1"]),
    (
        "fabric.devices='0,1'",
        ["fabric.devices=0,1: a list of GPUs needs fabric.accelerator=cuda; set it", "devices=2"],
    ),
    ("fabric.devices=[1,1]", ["fabric.devices=[1, 1]: must contain each GPU index once"]),
    ("fabric.devices=[-1]", ["fabric.devices=[-1]: must contain each GPU index once, counted from 0"]),
    ("fabric.devices=[]", ["fabric.devices=[]: must contain each GPU index once"]),
    ("fabric.devices=[a]", ["fabric.devices=['a']", "list of integer"]),
    ("fabric.num_nodes=2", ["fabric.num_nodes=2", "must be 1; a run trains on one machine"]),
    ("fabric.accelerator=gpuu", ["fabric.accelerator", "gpuu", "'gpu'"]),
    ("fabric.precision=64", ["fabric.precision", "64", "32-true"]),
    ("hydra.searchpath=[pkg://os]", ["hydra.searchpath", "SHEPHERD_SEARCH_PATH"]),
    ("hydra/launcher=joblib", ["hydra/launcher", "joblib"]),
    ("env.wrapper.id=Other-v1", ["env.wrapper.id", "Other-v1", "env.id"]),
    ("model_manager.models.agnet.tags={}", ["model_manager.models.agnet", "'agent'"]),
    ("model_manager.models.agent.modelname=x", ["model_manager.models.agent.modelname", "'model_name'"]),
    ("init_from=a checkpoint.resume_from=b", ["init_from"]),
    # Keys of SheepRL's other algorithms: the message names the algorithm, not a similar key.
    ("algo.replay_ratio=1", ["algo.replay_ratio=1", "SheepRL's key of sac", "ppo has no such key"]),
    ("algo.learning_starts=100", ["algo.learning_starts=100", "sac", "dreamer"]),
    ("algo.tau=0.005", ["algo.tau=0.005", "sac"]),
    ("algo.world_model.kl_dynamic=0.5", ["algo.world_model.kl_dynamic=0.5", "dreamer"]),
    ("algo.per_rank_sequence_length=16", ["algo.per_rank_sequence_length=16", "ppo_recurrent"]),
    ("algo.mlp_keys.decoder=[state]", ["algo.mlp_keys.decoder", "sac_ae"]),
    ("algo.actor.objective_mix=null", ["algo.actor.objective_mix=null", "dreamer"]),
    ("buffer.type=episodes", ["buffer.type", "episodes", "'episode'"]),
    ("checkpoint.exploration_ckpt_path=x", ["checkpoint.exploration_ckpt_path=x", "p2e"]),
    # Keys of other libraries without an equivalent: the nearest match would mislead.
    ("env.restart_on_exception.attempts=-1", ["env.restart_on_exception.attempts=-1", "must be an integer"]),
    ("algo.shuffle_minibatches=false", ["algo.shuffle_minibatches=false", "rl8's key", "algo.shuffle"]),
    ("algo.vf_clip_param=5", ["algo.vf_clip_param=5", "rl8's key", "algo.value_loss_cap"]),
    ("algo.seqs_per_state_reset=-1", ["rl8's key", "algo.sequences_per_state_reset"]),
    ("algo.model=mine", ["algo.model=mine", "package.module:Class"]),
    ("algo.horizons_per_env_reset=2", ["rl8's key", "env.horizons_per_env_reset"]),
    ("algo.enable_amp=true", ["algo.enable_amp=true", "rl8's key", "fabric.precision=bf16-mixed"]),
    ("algo.num_sgd_iters=4", ["algo.num_sgd_iters", "'algo.update_epochs'"]),
    ("algo.sgd_minibatch_size=64", ["algo.sgd_minibatch_size", "'algo.per_rank_batch_size'"]),
    # Keys at the wrong level, and config files in place of keys.
    ("algo.lr=1e-3", ["algo.lr", "'algo.optimizer.lr'"]),
    ("gamma=0.9", ["'gamma'", "'algo.gamma'"]),
    ("algo.optimizer=sgd", ["algo.optimizer=sgd", "type optim=sgd"]),
    ("metric.logger=csv", ["metric.logger=csv", "type logger=csv"]),
    ("algo.optimizer=lion", ["algo.optimizer=lion", "as optim=adam"]),
    # Several values, in all forms of Hydra.
    ("exp_name=a,b", ["exp_name=a,b", "several values"]),
    ("algo.gamma=choice(0.9,0.99)", ["algo.gamma=choice(0.9,0.99)", "several values"]),
    ("algo.gamma=interval(0.9,0.99)", ["algo.gamma=interval(0.9,0.99)", "several values"]),
    ("seed=range(1,4)", ["seed=range(1,4)", "several values"]),
    ("env=gym,mujoco", ["env=gym,mujoco", "several values"]),
    # Two settings in one entry, as in a list of overrides.
    (
        "env.id=CartPole-v1 env.num_envs=8",
        ["two settings in one argument", "'env.id=CartPole-v1' and 'env.num_envs=8'"],
    ),
    ("env.num_envs=8 seed=3", ["two settings in one argument", "'env.num_envs=8' and 'seed=3'"]),
    ("env=gym env.id=CartPole-v1", ["two settings in one argument", "'env=gym' and 'env.id=CartPole-v1'"]),
    ("seed=3\nenv=mujoco", ["two settings in one argument", "'seed=3' and 'env=mujoco'"]),
    # Algorithms of SheepRL that are not implemented yet, and a key of its first versions.
    ("algo.name=sac_decoupled", ["algo.name=sac_decoupled", "SheepRL's sac_decoupled is not implemented yet"]),
    ("algo.name=ppo_decoupled", ["algo.name=ppo_decoupled", "not implemented yet"]),
    ("algo.name=dreamer_v9", ["algo.name=dreamer_v9", "unknown algorithm; did you mean 'dreamer_v"]),
    ("algo.per_rank_gradient_steps=1", ["algo.per_rank_gradient_steps=1", "use algo.replay_ratio"]),
    # Values without meaning, and keys without effect in combination with others.
    ("env.frame_stack=0", ["env.frame_stack=0", "1 or more, or -1"]),
    ("env.frame_stack_dilation=2", ["env.frame_stack_dilation=2", "without env.frame_stack of 2 or more"]),
    ("env.actions_as_observation.dilation=3", ["dilation=3", "without env.actions_as_observation.num_stack of 2"]),
    ("algo.mlp_keys.encoder=[state,state]", ["algo.mlp_keys.encoder=[state,state]", "must not contain state twice"]),
    ("algo.mlp_keys.encoder=['']", ["algo.mlp_keys.encoder=[]", "must not contain an empty name"]),
    ("algo.total_steps=1e23", ["algo.total_steps=", "must be at most 9223372036854775807"]),
    ("seed=18446744073709551616", ["seed=18446744073709551616", "must be at most"]),
    ("algo.lr_schedule=[[0,nan]]", ["algo.lr_schedule=nan", "must be a finite number"]),
    (
        "algo.schedule_kind=step",
        ["algo.schedule_kind=step", "has no effect without a schedule; set algo.lr_schedule or"],
    ),
    ("algo.obs_clip=5", ["algo.obs_clip=5", "without algo.normalize_obs=true"]),
    ("algo.reward_clip=5", ["algo.reward_clip=5", "without algo.normalize_reward=true"]),
    ("algo.reward_scale=rollout", ["algo.reward_scale=rollout", "without algo.normalize_reward=true"]),
    ("algo.vf_clip_coef=1", ["algo.vf_clip_coef=1", "without algo.clip_vloss=true"]),
    ("algo.sequences_per_state_reset=2", ["algo.sequences_per_state_reset=2", "it is a key of ppo_recurrent"]),
    ("buffer.prioritize_ends=true", ["buffer.prioritize_ends=true", "without buffer.type=episode"]),
    ("buffer.memmap_dir=/tmp", ["buffer.memmap_dir=/tmp", "without buffer.memmap=true"]),
    ("early_stop.min_delta=1", ["early_stop.min_delta=1", "without early_stop.patience of 1 or more"]),
    ("early_stop.patiens=1", ["unknown key 'early_stop.patiens'", "did you mean 'early_stop.patience'"]),
    ("stop=[{upper_bund:{metric:policy_steps,value:1}}]", ["stop[0]", "'upper_bund'; did you mean 'upper_bound'"]),
    (
        "stop=[{upper_bound:{metric:Rewards/rew_av,value:1}}]",
        ["stop[0].upper_bound.metric=Rewards/rew_av", "ppo does not report", "did you mean 'Rewards/rew_avg'"],
    ),
    ("stop=[{lower_bound:{metric:Info/alpha,value:1}}]", ["Info/alpha", "ppo does not", "Info/approx_kl"]),
    ("stop=[{lower_bound:{metric:updates}}]", ["stop[0].lower_bound.value is required"]),
    ("stop=[{plateau:{metric:updates,patienc:3}}]", ["'stop[0].plateau.patienc'", "'stop[0].plateau.patience'"]),
    ("stop=[{plateau:{metric:updates,patience:0}}]", ["stop[0].plateau.patience=0", "integer that is >= 1"]),
    ("stop=[{all:[{plateau:{metric:nothing}}]}]", ["stop[0].all[0].plateau.metric=nothing", "ppo does not report"]),
    ("stop=[{all:[]}]", ["stop[0].all=[]", "list of conditions"]),
    ("stop=[{plateau:{metric:updates},all:[]}]", ["stop[0]", "one condition, but has plateau, all"]),
    ("stop=[3]", ["stop[0]=3", "must be a mapping"]),
    ("stop=[{_target_:mine:Solved}]", ["stop[0]._target_=mine:Solved", "plugins=[mine]"]),
    ("group=''", ["group=''", "must not be empty"]),
    ("env.id=''", ["env.id=''", "must not be empty"]),
    # Control characters are refused, and escaped in the message.
    ("env.id=Cart\x1b[31mPole", [r"env.id=Cart\x1b[31mPole", "must not contain control characters"]),
    ("run_name='a\nb'", [r"run_name=a\nb", "must not contain control characters"]),
    (
        "+metric.logger.tags={note: '\u202e'}",
        [r"metric.logger.tags.note=\u202e", "must not contain control characters"],
    ),
    ("env.wrapper.render=\x9b2J", [r"\x9b2J", "cannot be read"]),
    ("run_name=lr=1 seed=3", ["two settings in one argument", "run_name='…'"]),
]


@pytest.mark.parametrize(("override", "parts"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_compose_error_names_key_value_and_allowed(cached_files, override, parts):
    typed = override.split(" ") if override.startswith("init_from") else [override]
    sentence = error_message(["exp=ppo", *typed])
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], ["exp=ppo", "`shepherd train -h` lists them"]),
        (["seed=1"], ["exp=ppo"]),
        (["ex=ppo"], ["'ex'", "'exp'"]),
        (["exp"], ["exp=ppo"]),
        (["ppo"], ["exp=ppo"]),
        (["exp=ppoo"], ["exp=ppoo", "'ppo'"]),
        (["exp="], ["exp=", "shepherd agents"]),
        (["exp=???"], ["exp=???", "shepherd agents"]),
        (["exp=dreamer_v3_minedojo"], ["exp=dreamer_v3_minedojo", "not supported yet", "shepherd agents"]),
        (["exp=ppo_super_mario_bros"], ["exp=ppo_super_mario_bros", "not supported yet"]),
        (
            ["exp=sac", "buffer.memmap=true", "buffer.on_device=true"],
            ["buffer.on_device=true", "buffer.memmap=true", "false"],
        ),
        (["exp=ppo", "exp=ppo_pendulum"], ["exp=ppo", "exp=ppo_pendulum", "twice"]),
        (["exp=ppo", "seed=1", "++seed=2"], ["seed=1", "++seed=2", "twice"]),
        (["exp=ppo", "logger=csv", "logger@metric.logger=none"], ["logger=csv", "twice"]),
        (["exp=default"], ["algo.name", "ppo"]),
        (["exp=default", "algo=ppo"], ["env.id"]),
        (["exp=default", "algo=ppo", "env=gym"], ["algo.total_steps"]),
    ],
)
def test_compose_refuses_wrong_config_files(overrides, parts):
    sentence = error_message(overrides)
    for part in parts:
        assert part in sentence


def test_compose_refuses_annealing_without_budget():
    stop = "stop=[{upper_bound:{metric:updates,value:10}}]"
    sentence = error_message(["exp=ppo", "algo.total_steps=null", "algo.anneal_lr=true", stop])
    assert sentence.startswith("algo.anneal_lr=true: needs algo.total_steps")
    assert "algo.lr_schedule=[[0, VALUE], [POLICY_STEPS, VALUE]]" in sentence
    endless = error_message(["exp=ppo", "algo.total_steps=null", "algo.anneal_lr=false"])
    assert endless.startswith("algo.total_steps=null: training would never end") and "stop=[{upper_bound" in endless
    config = compose(["exp=ppo", "algo.total_steps=null", "algo.anneal_lr=false", stop])[0]
    assert (config.checkpoint_every, config.evaluation_every) == (50_000, 100_000)
    wide = compose(["exp=ppo", "algo.total_steps=null", "algo.anneal_lr=false", stop, "env.num_envs=8192"])[0]
    assert wide.evaluation_every == 20 * 8192 * wide.algo.rollout_steps


def test_compose_reports_all_mistakes_by_importance():
    """An unsupported environment comes first, and each cause is reported once."""
    with pytest.raises(UserError) as caught:
        compose(["exp=ppo", "algo.gama=0.9", "algo.dense_act=x", "algo.replay_ratio=1", "seed=-1", "env=minedojo"])
    first, *others = [str(mistake) for mistake in caught.value.mistakes]
    assert first.startswith("env=minedojo: SheepRL's minedojo is not supported yet")
    assert sorted(sentence.split("=")[0].split(" (")[0] for sentence in others) == [
        "algo.dense_act",  # not for the three keys that inherit the value
        "algo.replay_ratio",
        "seed",
        "unknown key 'algo.gama'",
    ]
    assert str(caught.value).splitlines() == [first, *others]


@pytest.mark.parametrize(
    "environment",
    ["env.id=MineRLNavigate-v0", "env.wrapper._target_=sheeprl.envs.minerl.MineRLWrapper", "env=minerl"],
)
def test_compose_reports_unsupported_environment_first(environment):
    with pytest.raises(UserError) as caught:
        compose(["exp=sac", "algo.gamma=1.5", environment])
    first, second = [str(mistake) for mistake in caught.value.mistakes]
    assert first.startswith(environment)
    assert second.startswith("algo.gamma=1.5")


def test_new_run_reports_missing_environment_and_gpu_together(tmp_path, monkeypatch):
    monkeypatch.setattr("rlcore.train.resource_check.gpus", lambda: 0)
    with pytest.raises(UserError) as caught:
        new_run(["exp=ppo", f"run_dir={tmp_path}/run", "fabric.accelerator=cuda", "env.id=CartPol-v1"])
    first, second = [str(mistake) for mistake in caught.value.mistakes]
    assert first.startswith("env.id=CartPol-v1: no such environment")
    assert second.startswith("fabric.accelerator=cuda")
    assert not (tmp_path / "run").exists()


def test_compose_reports_keys_despite_misleading_env_id():
    """Only an unsupported suite hides mistakes in its keys, not an env.id that contains the words."""
    with pytest.raises(UserError) as caught:
        compose(["exp=ppo", "env.id='Maze is not supported yet'", "env.wrapper.size=3", "env.nokey=1"])
    mistakes = [str(mistake) for mistake in caught.value.mistakes]
    assert [sentence.startswith("unknown key 'env.nokey'") for sentence in mistakes] == [False, True]


def test_compose_reports_missing_keys_only_without_mistakes():
    sentence = error_message(["exp=default", "algo=ppo", "env=gym", "algo.gama=1"])
    assert "algo.gama" in sentence


def test_wrapper_target_error_names_missing_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = "env.wrapper._target_=mine_is_not_there.Env"
    assert "module mine_is_not_there was not found" in error_message(["exp=ppo", target])
    (tmp_path / "mine_is_not_there.py").write_text("raise AssertionError('imported')")
    sentence = error_message(["exp=ppo", target])
    assert "was not found" not in sentence and "plugins=[mine_is_not_there]" in sentence


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["exp=ppo_recurrent", "algo.rollout_steps=8"],
            "algo.per_rank_sequence_length=16: must not be above algo.rollout_steps (8); null uses the whole rollout",
        ),
        (
            ["exp=sac", "buffer.prioritize_ends=true"],
            "buffer.prioritize_ends=true: has no effect without buffer.type=episode; set buffer.type=episode, or leave "
            "buffer.prioritize_ends out",
        ),
        (
            ["exp=ppo", "env.capture_video=false", "evaluation.film=every"],
            "evaluation.film=every: has no effect without env.capture_video=true; set env.capture_video=true, or leave "
            "evaluation.film out",
        ),
        (["exp=sac", "algo.critic.bins=51"], "algo.critic.bins=51: has no effect without algo.critic.loss=categorical"),
        (
            ["exp=sac", "algo.alpha.fixed=true", "algo.alpha.target_entropy=-3"],
            "algo.alpha.target_entropy=-3.0: has no",
        ),
        (["exp=crossq", "algo.critic.target_network_frequency=2"], "algo.critic.target_network_frequency=2: has no"),
        (["exp=dreamer_v2", "algo.actor.expl_decay=100"], "algo.actor.expl_decay=100.0: has no effect without algo"),
        (
            ["exp=dreamer_v1", "algo.world_model.continue_scale_factor=5"],
            "algo.world_model.continue_scale_factor=5.0: ",
        ),
        (["exp=ppo", "optim=sgd", "algo.optimizer.momentum=1"], "algo.optimizer.momentum=1.0: must be below 1"),
        (["exp=a2c", "algo.optimizer.alpha=1"], "algo.optimizer.alpha=1.0: must be below 1"),
    ],
)
def test_compose_refuses_keys_without_effect(cached_files, overrides, sentence):
    assert error_message(overrides).startswith(sentence)


def test_compose_accepts_keys_with_required_key(cached_files):
    typed = ["buffer.type=episode", "buffer.prioritize_ends=true", "algo.actor.expl_amount=0.1"]
    config = compose(["exp=dreamer_v2", *typed, "algo.actor.expl_decay=100"])[0]
    assert (config.buffer.prioritize_ends, config.algo.actor.expl_decay) == (True, 100)
    compose(["exp=ppo_recurrent", "algo.rollout_steps=8", "algo.per_rank_sequence_length=null"])


def test_unsupported_suite_hides_mistakes_in_its_keys():
    keys = ["env.sticky_attack=30", "env.sticky_jump=10", "env.break_speed_multiplier=100", "env.min_pitch=-60"]
    settings = ["env.id=open-ended", "env.wrapper._target_=sheeprl.envs.minedojo.MineDojoWrapper", *keys]
    assert error_message(["exp=dreamer_v3", *settings]).startswith(
        "env.wrapper._target_=sheeprl.envs.minedojo.MineDojoWrapper: "
    )
    assert error_message(["exp=dreamer_v3", "env=minerl", "env.id=custom_navigate"]).startswith(
        "env=minerl: SheepRL's minerl "
    )
    assert error_message(["exp=dreamer_v3", "env.id=SuperMarioBros-v0", *keys]).startswith(
        "env.id=SuperMarioBros-v0: the Super "
    )


def test_buffer_size_below_batch_size_is_refused():
    sentence = error_message(["exp=sac_pendulum", "buffer.size=255"])
    assert sentence.startswith("buffer.size=255: ") and "algo.per_rank_batch_size=256" in sentence
    compose(["exp=sac_pendulum", "buffer.size=256"])


def test_learning_starts_above_total_steps_is_refused():
    sentence = error_message(["exp=sac_pendulum", "algo.learning_starts=9000"])
    assert sentence.startswith("algo.learning_starts=9000: ") and "algo.total_steps (8000)" in sentence


def test_build_config_names_place_of_algorithm_keys():
    with pytest.raises(UserError) as refused:
        build_config(compose(["exp=ppo"])[1] | {"total_steps": 100, "cnn_keys": {"encoder": ["rgb"]}})
    assert str(refused.value).splitlines() == [
        "total_steps=100: this key belongs to the algorithm; use algo.total_steps",
        "cnn_keys={'encoder': ['rgb']}: this key belongs to the algorithm; use algo.cnn_keys",
    ]


def test_compose_reports_suite_and_algorithm_mistakes_together(monkeypatch):
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    wrong = ["algo.gama=1", "env.wrapper.diambra_settings.step_ratio=0", "env.wrapper.diambra_settings.outfits=9"]
    with pytest.raises(UserError) as refused:
        compose(["exp=ppo", "env=diambra", "env.id=doapp", *wrong])
    for cause in ("algo.gama", "5 engines are needed", "step_ratio=0", "outfits=9"):
        assert cause in str(refused.value)


@pytest.mark.parametrize("value", ["abc", "5", "1.5", "true"])
def test_env_wrapper_must_be_mapping(value):
    wrong = ["exp=ppo", "env=diambra", "env.id=doapp", f"env.wrapper={value}"]
    assert error_message(wrong).startswith(f"env.wrapper={value}: must be a")


def test_compose_suggests_nothing_for_other_algorithms_keys(cached_files):
    assert "did you mean" not in error_message(["exp=ppo", "algo.replay_ratio=1"])
    assert (
        error_message(["exp=a2c", "algo.clip_coef=0.1"])
        == "algo.clip_coef=0.1: a2c has no such key; it is a key of ppo, ppo_recurrent"
    )


@pytest.mark.parametrize("place", ABSENT_KEYS)
def test_refuse_absent_keys_refuses_every_listed_key(place):
    tree = {"algo": {"name": "ppo"}}
    *groups, last = place.split(".")
    node = tree
    for group in groups:
        node = node.setdefault(group, {})
    node[last] = 1
    with pytest.raises(UserError, match=re.escape(f"{place}=1: ") + "(SheepRL|rl8)'s key"):
        refuse_absent_keys(tree)


def test_refuse_absent_keys_accepts_keys_of_ppo():
    refuse_absent_keys(compose(["exp=ppo"])[1])


# User file exp/mine.yaml, and parts of the error message.
GLOBAL = "# @package _global_\n"
FILES = [
    (GLOBAL + "algo: [1\nb: 2\n", ["mine.yaml:3", "invalid YAML"]),
    (GLOBAL + "algo: {gamma: 1, gamma: 2}\n", ["mine.yaml", "gamma"]),
    (GLOBAL + "defaults:\n  - override /algo: ppoo\n  - _self_\n", ["exp=mine", "ppoo", "'ppo'"]),
    (GLOBAL + "defaults:\n  - override /algos: ppo\n  - _self_\n", ["exp/mine", "algos", "'algo'"]),
    (GLOBAL + "defaults:\n  - ppoo\n  - _self_\n", ["exp/mine", "ppoo", "'ppo'"]),
    (GLOBAL + "defaults:\n  - /nothing: x\n  - _self_\n", ["exp/mine", "nothing"]),
    (GLOBAL + "defaults: 5\n", ["exp/mine", "defaults"]),
    (GLOBAL + "- 1\n", ["exp/mine"]),
    ("algo: {total_steps: 5}\n", ["exp=mine", "# @package _global_"]),
    (GLOBAL + "defaults: [ppo, _self_]\nalgo: 5\n", ["algo=5", "group"]),
    (GLOBAL + "defaults: [ppo, _self_]\nenv: null\n", ["env=null", "group"]),
    (GLOBAL + "defaults: [ppo, _self_]\nfabric: 5\n", ["fabric=5"]),
    (GLOBAL + "defaults: [ppo, _self_]\nfabric: {callbacks: 5}\n", ["fabric.callbacks", "5"]),
    (GLOBAL + "defaults: [ppo, _self_]\nenv: {wrapper: {_target_: [x]}}\n", ["env.wrapper._target_", "gymnasium.make"]),
    (GLOBAL + "defaults: [ppo, _self_]\nalgo: {name: sca}\n", ["algo.name", "sca", "ppo"]),
    (GLOBAL + "defaults: [ppo, _self_]\n7: x\n", ["7", "x"]),
    (GLOBAL + "defaults: [ppo, _self_]\nalgo: {gama: 0.9}\n", ["algo.gama", "gamma'"]),
    (GLOBAL + "defaults: [ppo, _self_]\nseed: '3'\n", ["seed", "3", "integer"]),
    (GLOBAL + "defaults: [ppo, _self_]\nalgo: {ensembles: 15}\n", ["algo.ensembles=15", "p2e"]),
]


@pytest.mark.parametrize(("text", "parts"), FILES)
def test_compose_error_names_mistake_in_user_file(tmp_path, monkeypatch, text, parts):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_text(text)
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    sentence = error_message(["exp=mine"])
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("typed", ["mine", "mine.yml", "sub/mine"])
def test_compose_asks_to_rename_yml_file(tmp_path, monkeypatch, typed):
    (tmp_path / "exp/sub").mkdir(parents=True)
    for name in ("mine", "sub/mine"):
        (tmp_path / "exp" / f"{name}.yml").write_text(GLOBAL + "defaults: [ppo, _self_]\n")
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    assert "mine" not in yaml_files.presets()
    file = tmp_path / "exp" / f"{typed.removesuffix('.yml')}.yml"
    assert (
        error_message([f"exp={typed}"])
        == f"exp={typed.removesuffix('.yaml')}: {file} is not read; rename it to mine.yaml"
    )


def test_compose_refuses_binary_config_file(tmp_path, monkeypatch):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    assert "exp=mine" in error_message(["exp=mine"])


@pytest.mark.parametrize("entry", ["/no/such/folder", "file://no/such", "pkg://numpy", "s3://bucket/configs"])
def test_search_path_refuses_entry_that_is_no_folder(monkeypatch, entry):
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", entry)
    sentence = error_message(["exp=ppo"])
    assert "SHEEPRL_SEARCH_PATH" in sentence
    assert entry in sentence


# --- a config never causes an import --------------------------------------------------------------------------------

PLACES = [
    "env.wrapper._target_",
    "algo.optimizer._target_",
    "fabric._target_",
    "metric.aggregator._target_",
    "metric.aggregator.metrics.X._target_",
    "metric.logger._target_",
    "algo.dense_act",
    "algo.encoder.dense_act",
    "algo._target_",
    "_target_",
    "env._target_",
    "env.wrapper.env._target_",
    "model_manager.models.agent.tags._target_",
    "algo.actor._target_",
]
HOSTILE = ["os.system", "builtins.eval", "subprocess.run", "torch.load", "canary.explode"]


@pytest.fixture
def import_trap(tmp_path, monkeypatch):
    """Module that would create a marker file if it were imported."""
    marker = tmp_path / "imported"
    for name in ("canary.py", "canary_package/__init__.py"):
        file = tmp_path / "modules" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield marker
    assert not marker.exists()
    assert "canary" not in sys.modules
    assert "canary_package" not in sys.modules


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("target", HOSTILE)
def test_compose_refuses_class_without_import(import_trap, cached_files, place, target):
    sentence = error_message(["exp=ppo", f"++{place}={target}"])
    assert target in sentence or "_target_" in sentence


def test_compose_refuses_hostile_file_without_import(import_trap, tmp_path, monkeypatch):
    exp = tmp_path / "own" / "exp"
    exp.mkdir(parents=True)
    (exp / "callback.yaml").write_text(
        GLOBAL + "defaults: [ppo, _self_]\nfabric: {callbacks: [{_target_: canary.explode}]}\n"
    )
    (exp / "tag.yaml").write_text(GLOBAL + "defaults: [ppo, _self_]\nseed: !!python/object/apply:canary.explode []\n")
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path / "own"))
    assert "canary.explode" in error_message(["exp=callback"])
    assert "tag.yaml" in error_message(["exp=tag"])


def test_search_path_imports_no_package(import_trap, tmp_path, monkeypatch):
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "pkg://canary_package")
    assert "pkg://canary_package" in error_message(["exp=ppo"])
    # Hydra itself would import the packages of a searchpath in the root file.
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.yaml").write_text(
        "defaults: [_self_, {algo: ppo}, {env: gym}, {exp: ppo}]\nhydra: {searchpath: ['pkg://canary_package']}\n"
    )
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(own))
    try:
        compose(["exp=ppo"])
    except UserError as error:
        assert re.search("override|config", str(error))
