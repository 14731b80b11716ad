"""Notices, said once at the start of a run: keys without effect, a batch that is cut."""

from __future__ import annotations

import dataclasses

import pytest

from flows.config.compose import compose
from flows.config.notices import notices as every_notice
from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments


def notices(config, overrides=()):
    return list(every_notice(config, overrides))


# Each beside a value that is not its default.
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
def test_a_key_without_effect_is_named_once_when_set(key):
    typed = f"{key}={UNUSED[key]}"
    (sentence,) = notices(compose(["exp=ppo", typed])[0])
    assert sentence.startswith(f"{typed}: no effect (")


def test_an_environment_whose_own_keys_make_its_id_is_not_said_to_stay():
    typed = ["exp=sac", "env=dmc", "env.wrapper.domain_name=cartpole", "env.wrapper.task_name=balance"]
    assert not notices(compose(typed)[0], typed)


@pytest.mark.parametrize("typed", ["env.frame_stack=4", "env.grayscale=true"])
def test_settings_of_images_that_nobody_reads_are_told(typed):
    (sentence,) = notices(compose(["exp=ppo", typed])[0], [typed])
    assert sentence.startswith(f"{typed}: no effect (it applies to images, and algo.cnn_keys.encoder=[] selects none)")
    seen = [typed, "algo.cnn_keys.encoder=[rgb]"]
    assert not notices(compose(["exp=ppo", *seen])[0], seen)


@pytest.mark.parametrize(
    ("total", "trained"),
    [
        (8000, "7,168 policy steps are trained, 7 iterations of 1,024"),
        (10, "1,024 policy steps are trained, 1 iter"),
        (40_000, "39,936 policy steps are trained, 39 iterations of 1,024"),
    ],
)
def test_a_budget_that_ends_within_an_iteration_is_told(total, trained):
    typed = ["exp=ppo", "env.num_envs=8", "algo.rollout_steps=128"]
    (sentence,) = notices(compose([*typed, f"algo.total_steps={total}"])[0])
    assert sentence.startswith(f"algo.total_steps={total}: {trained}")
    (dry,) = notices(compose([*typed, f"algo.total_steps={total}", "dry_run=true"])[0])
    assert dry.startswith("dry_run=true: training ends with the iteration of the first gradient step")
    assert notices(compose([*typed, "algo.total_steps=204800"])[0]) == []


@pytest.mark.parametrize("typed", ["buffer.online=true", "buffer.type=episode"])
def test_how_a_memory_is_drawn_from_has_no_effect_where_there_is_none(typed):
    (sentence,) = notices(compose(["exp=ppo", typed])[0])
    assert sentence == f"{typed}: no effect (ppo has no replay buffer and uses every rollout once)"


@pytest.mark.parametrize(
    ("file", "said"),
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
def test_notices_tell_what_files_switch_off(tmp_path, monkeypatch, file, said):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_text(f"# @package _global_\ndefaults: [ppo, _self_]\n{file}\n")
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", str(tmp_path))
    assert notices(compose(["exp=mine"])[0], ["exp=mine"]) == [said]
    typed = ["exp=ppo", "algo.compile=false", "model_manager.disabled=true"]
    assert notices(compose(typed)[0], typed) == []


def test_notices_tell_the_gradient_steps_of_train_every():
    typed = ["exp=dreamer_v2_cartpole", "algo.train_every=16", "algo.replay_ratio=0.5", "algo.learning_starts=500"]
    (said,) = notices(compose(typed)[0], typed)
    assert said == (
        "algo.train_every=16: 8 gradient steps of each rank after every 16 policy steps, because of "
        "algo.replay_ratio=0.5; for one gradient step, as in SheepRL's files of 2023, set algo.replay_ratio=0.0625"
    )
    typed[2] = "algo.replay_ratio=0.0625"
    assert notices(compose(typed)[0], typed) == []


def test_how_a_dreamers_memory_is_drawn_from_is_told_where_it_is_not_as_its_keys_say():
    small = ["exp=dreamer_v3_cartpole", "algo.learning_starts=500"]
    assert notices(compose([*small, "buffer.online=true"])[0]) == []
    assert notices(compose([*small, "buffer.type=episode", "buffer.prioritize_ends=true"])[0]) == []
    (slow,) = notices(compose([*small, "buffer.online=true", "algo.replay_ratio=0.0039"])[0])  # 256 rows a step
    assert slow.startswith(
        "buffer.online=true: every 16 rows complete a new sequence, but algo.replay_ratio=0.0039 draws"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_earlier_dreamers_do_not_read_is_told(version):
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
        assert any(told.startswith(f"{world}.recurrent_model.dense_units=7: no effect (") for told in unread)


def test_a_key_with_an_effect_is_not_named():
    assert notices(compose(["exp=ppo", "algo.gamma=0.5", "env.num_envs=2", "metric.disable_timer=true"])[0]) == []


def test_keys_of_one_reason_share_a_sentence():
    (sentence,) = notices(compose(["exp=ppo", "buffer.share_data=true", "metric.sync_on_compute=true"])[0])
    assert sentence.startswith("buffer.share_data=true, metric.sync_on_compute=true: no effect (training always uses")


def test_the_keys_marked_as_unused_are_those_of_the_table():
    config, _ = compose(["exp=ppo"])
    marked = [*arguments(RunConfig), *arguments(type(config.algo), "algo.")]
    assert {argument.key for argument in marked if argument.unused} == set(UNUSED)


@pytest.mark.parametrize(("size", "said"), [(512, 0), (513, 1), (4096, 1)])
def test_a_batch_above_a_rollout_is_told(size, said):
    """4 environments of 128 steps are 512."""
    overrides = ["exp=ppo", "env.num_envs=4", "algo.rollout_steps=128", f"algo.per_rank_batch_size={size}"]
    sentences = notices(compose(overrides)[0])
    assert len(sentences) == said
    assert all(f"algo.per_rank_batch_size={size}: reduced to 512" in sentence for sentence in sentences)


@pytest.mark.parametrize("typed", ["hydra.run.dir=/logs", "hydra.output_subdir=null", "+metric.logger.root_dir=x"])
def test_a_key_that_never_reaches_the_config_is_named(typed):
    overrides = ["exp=ppo", typed]
    (sentence,) = notices(compose(overrides)[0], overrides)
    assert sentence.startswith(f"{typed}: no effect (")


def test_the_default_of_a_stored_run_is_no_notice():
    config, _ = compose(["exp=ppo"])
    assert notices(dataclasses.replace(config, run_name="other")) == []


def test_a_preset_whose_environment_stays_beside_the_settings_of_others_is_told():
    typed = ["exp=sac", "env=mujoco"]
    (sentence,) = notices(compose(typed)[0], typed)
    assert sentence.endswith("not the environment LunarLanderContinuous-v3; to change it, add env.id=Walker2d-v5")
    for more in (["env.id=Hopper-v5"], ["env.id=LunarLanderContinuous-v3"]):
        assert notices(compose([*typed, *more])[0], [*typed, *more]) == []
