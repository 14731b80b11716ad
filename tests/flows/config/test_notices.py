"""Notices at the start of a run: keys without effect, changed values, incomplete iterations."""

from __future__ import annotations

import dataclasses

import pytest

from flows.config.compose import compose
from flows.config.notices import notices as every_notice
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments


def notices(config, overrides=()):
    return list(every_notice(config, overrides))


# Key: a value that is not the default.
UNUSED = {
    "buffer.validate_args": "true",
    "buffer.from_numpy": "true",
    "buffer.checkpoint": "false",
    "buffer.sample_next_obs": "true",
    "buffer.share_data": "true",
    "checkpoint.memmap_buffer": "copy",
    "distribution.validate_args": "true",
    "metric.sync_on_compute": "true",
    "run_benchmarks": "true",
}


@pytest.mark.parametrize("key", UNUSED)
def test_notices_name_unused_key(key):
    typed = f"{key}={UNUSED[key]}"
    (sentence,) = notices(compose(["exp=ppo", typed])[0])
    assert sentence.startswith(f"{typed}: no effect (")


def test_notices_ignore_env_id_from_wrapper_keys():
    typed = ["exp=sac", "env=dmc", "env.wrapper.domain_name=cartpole", "env.wrapper.task_name=balance"]
    assert not notices(compose(typed)[0], typed)


def test_notices_name_id_of_own_class(monkeypatch):
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.probes.own_model")
    typed = ["env=batched", "env.wrapper._target_=tests.probes.own_model.Maze"]
    assert not notices(compose(["exp=ppo", *typed, "env.id=Maze"])[0], [*typed, "env.id=Maze"])
    (sentence,) = notices(compose(["exp=ppo", *typed[1:]])[0], typed[1:])
    assert sentence.startswith("env.id=CartPole-v1: the run and its model are named after env.id, not after the class")
    assert sentence.endswith("add env.id=Maze")
    known = ["env.wrapper._target_=gymnasium.make"]
    assert not notices(compose(["exp=ppo", *known])[0], known)


@pytest.mark.parametrize("typed", ["env.frame_stack=4", "env.grayscale=true"])
def test_notices_name_image_keys_without_image_encoder(typed):
    (sentence,) = notices(compose(["exp=ppo", typed])[0], [typed])
    assert sentence.startswith(f"{typed}: no effect (it applies to images, and algo.cnn_keys.encoder=[] selects none)")
    seen = [typed, "algo.cnn_keys.encoder=[rgb]"]
    assert not notices(compose(["exp=ppo", *seen])[0], seen)


def test_notices_name_condition_of_older_key():
    typed = ["early_stop.patience=3", "early_stop.min_delta=2"]
    (sentence,) = notices(compose(["exp=ppo", *typed])[0], typed)
    condition = "{metric: Evaluation/greedy_mean, patience: 3, min_delta: 2.0}"
    assert (
        sentence
        == f"early_stop.patience=3 early_stop.min_delta=2: older form of stop='[{{stops_increasing: {condition}}}]'"
    )


@pytest.mark.parametrize(
    ("total", "trained"),
    [
        (8000, "7,168 policy steps are trained, 7 iterations of 1,024"),
        (10, "1,024 policy steps are trained, 1 iter"),
        (40_000, "39,936 policy steps are trained, 39 iterations of 1,024"),
    ],
)
def test_notices_name_budget_of_incomplete_iteration(total, trained):
    typed = ["exp=ppo", "env.num_envs=8", "algo.rollout_steps=128"]
    (sentence,) = notices(compose([*typed, f"algo.total_steps={total}"])[0])
    assert sentence.startswith(f"algo.total_steps={total}: {trained}")
    (dry,) = notices(compose([*typed, f"algo.total_steps={total}", "dry_run=true"])[0])
    assert dry.startswith("dry_run=true: training ends with the iteration of the first gradient step")
    assert notices(compose([*typed, "algo.total_steps=204800"])[0]) == []


def test_notices_name_no_budget_without_total_steps():
    stop = "stop=[{upper_bound:{metric:updates,value:10}}]"
    endless = ["exp=ppo", "algo.total_steps=null", "algo.anneal_lr=false", stop]
    assert notices(compose([*endless, "env.num_envs=3", "algo.rollout_steps=100"])[0]) == []


@pytest.mark.parametrize("typed", ["buffer.online=true", "buffer.type=episode"])
def test_notices_name_replay_keys_of_on_policy_algorithm(typed):
    (sentence,) = notices(compose(["exp=ppo", typed])[0])
    assert sentence == f"{typed}: no effect (ppo has no replay buffer and uses every rollout once)"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "algo: {compile: {enabled: false, mode: reduce-overhead}}\nmodel_manager: {disabled: true}",
            "algo.compile=false, model_manager.disabled=true: the run is not compiled and its model is not registered; "
            "to change that, add algo.compile=auto model_manager.disabled=false",
        ),
        (
            "model_manager: {disabled: true}",
            "model_manager.disabled=true: its model is not registered; "
            "to change that, add model_manager.disabled=false",
        ),
    ],
)
def test_notices_name_features_disabled_by_files(tmp_path, monkeypatch, file, expected):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_text(f"# @package _global_\ndefaults: [ppo, _self_]\n{file}\n")
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", str(tmp_path))
    assert notices(compose(["exp=mine"])[0], ["exp=mine"]) == [expected]
    typed = ["exp=ppo", "algo.compile=false", "model_manager.disabled=true"]
    assert notices(compose(typed)[0], typed) == []


def test_notices_name_gradient_steps_of_train_every():
    typed = ["exp=dreamer_v2_cartpole", "algo.train_every=16", "algo.replay_ratio=0.5", "algo.learning_starts=500"]
    (sentence,) = notices(compose(typed)[0], typed)
    assert sentence == (
        "algo.train_every=16: 8 gradient steps of each rank after every 16 policy steps, because of "
        "algo.replay_ratio=0.5; for one gradient step, as in SheepRL's files of 2023, set algo.replay_ratio=0.0625"
    )
    typed[2] = "algo.replay_ratio=0.0625"
    assert notices(compose(typed)[0], typed) == []


def test_notices_name_online_sampling_with_low_replay_ratio():
    small = ["exp=dreamer_v3_cartpole", "algo.learning_starts=500"]
    assert notices(compose([*small, "buffer.online=true"])[0]) == []
    assert notices(compose([*small, "buffer.type=episode", "buffer.prioritize_ends=true"])[0]) == []
    # 256 rows per gradient step.
    (slow,) = notices(compose([*small, "buffer.online=true", "algo.replay_ratio=0.0039"])[0])
    assert slow.startswith(
        "buffer.online=true: every 16 rows complete a new sequence, but algo.replay_ratio=0.0039 draws"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_notices_name_unused_dreamer_v1_and_v2_keys(version):
    world = "algo.world_model"
    typed = ["env.frame_stack=4", f"{world}.discount_model.learnable=false"]
    typed += [f"{world}.recurrent_model.dense_units=7"] if version == 1 else []
    stacked, *unread = notices(compose([f"exp=dreamer_v{version}_cartpole", *typed])[0])
    assert stacked == (
        f"env.frame_stack=4: dreamer_v{version} uses only the newest frame; its recurrent state represents the past"
    )
    learnable = f"{world}.discount_model.learnable=false: no effect ({world}.use_continues enables the head)"
    assert learnable in unread and len(unread) == len(typed) - 1
    if version == 1:
        assert any(sentence.startswith(f"{world}.recurrent_model.dense_units=7: no effect (") for sentence in unread)


def test_notices_ignore_keys_with_effect():
    assert notices(compose(["exp=ppo", "algo.gamma=0.5", "env.num_envs=2", "metric.disable_timer=true"])[0]) == []


def test_notices_group_keys_by_reason():
    (sentence,) = notices(compose(["exp=ppo", "buffer.share_data=true", "metric.sync_on_compute=true"])[0])
    assert sentence.startswith("buffer.share_data=true, metric.sync_on_compute=true: no effect (training always uses")


def test_unused_table_matches_marked_arguments():
    config, _ = compose(["exp=ppo"])
    marked = [*arguments(RunConfig), *arguments(type(config.algo), "algo.")]
    assert {argument.key for argument in marked if argument.unused} == set(UNUSED)


@pytest.mark.parametrize(("size", "count"), [(512, 0), (513, 1), (4096, 1)])
def test_notices_name_batch_size_above_rollout(size, count):
    """The rollout has 4 * 128 = 512 rows."""
    overrides = ["exp=ppo", "env.num_envs=4", "algo.rollout_steps=128", f"algo.per_rank_batch_size={size}"]
    sentences = notices(compose(overrides)[0])
    assert len(sentences) == count
    assert all(f"algo.per_rank_batch_size={size}: reduced to 512" in sentence for sentence in sentences)


@pytest.mark.parametrize("typed", ["hydra.run.dir=/logs", "hydra.output_subdir=null", "+metric.logger.root_dir=x"])
def test_notices_name_keys_outside_config(typed):
    overrides = ["exp=ppo", typed]
    (sentence,) = notices(compose(overrides)[0], overrides)
    assert sentence.startswith(f"{typed}: no effect (")


def test_notices_ignore_stored_run_name():
    config, _ = compose(["exp=ppo"])
    assert notices(dataclasses.replace(config, run_name="other")) == []


def test_notices_name_env_group_without_env_id():
    typed = ["exp=sac", "env=mujoco"]
    (sentence,) = notices(compose(typed)[0], typed)
    assert sentence.endswith("not the environment LunarLanderContinuous-v3; to change it, add env.id=Walker2d-v5")
    for more in (["env.id=Hopper-v5"], ["env.id=LunarLanderContinuous-v3"]):
        assert notices(compose([*typed, *more])[0], [*typed, *more]) == []
