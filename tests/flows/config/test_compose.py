"""Composition of configs: presets, settings, user folders, existing runs."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from flows.config import yaml_files
from flows.config.compose import compose, compose_existing, dump, params_yaml
from flows.config.notices import notices
from flows.config.overrides import parse
from flows.config.yaml_files import BUILT_IN, available, groups, presets
from flows.registry.models import model_name
from flows.sweeps.plan import plan
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError
from rlcore.run_config import build_config
from tests.soaking import soak

# Built-in defaults of PPO on CartPole, without a preset.
BARE = ("exp=default", "algo=ppo", "env=gym", "algo.total_steps=65536")
DEFAULT_NAME = "ppo_CartPole-v1"
PRESETS = (
    "a2c",
    "a2c_acrobot",
    "a2c_atari",
    "a2c_benchmarks",
    "a2c_mujoco",
    "crossq",
    "crossq_inverted_pendulum",
    "crossq_mujoco",
    "dreamer_v1",
    "dreamer_v1_benchmarks",
    "dreamer_v1_cartpole",
    "dreamer_v1_pendulum",
    "dreamer_v1_point_mass",
    "dreamer_v2",
    "dreamer_v2_benchmarks",
    "dreamer_v2_cartpole",
    "dreamer_v2_crafter",
    "dreamer_v2_crosshair",
    "dreamer_v2_ms_pacman",
    "dreamer_v3",
    "dreamer_v3_100k_boxing",
    "dreamer_v3_100k_ms_pacman",
    "dreamer_v3_5",
    "dreamer_v3_5_100k_ms_pacman",
    "dreamer_v3_5_cartpole",
    "dreamer_v3_5_cartpole_long",
    "dreamer_v3_5_crosshair",
    "dreamer_v3_5_dmc_walker_walk",
    "dreamer_v3_5_point_mass",
    "dreamer_v3_L_doapp",
    "dreamer_v3_L_doapp_128px_gray_combo_discrete",
    "dreamer_v3_XL_crafter",
    "dreamer_v3_benchmarks",
    "dreamer_v3_cartpole",
    "dreamer_v3_cartpole_long",
    "dreamer_v3_crosshair",
    "dreamer_v3_dmc_cartpole_swingup_sparse",
    "dreamer_v3_dmc_walker_walk",
    "dreamer_v3_point_mass",
    "droq",
    "droq_mujoco",
    "droq_pendulum",
    "p2e_dv1_exploration",
    "p2e_dv1_exploration_point_mass",
    "p2e_dv1_finetuning",
    "p2e_dv1_finetuning_point_mass",
    "p2e_dv2_exploration",
    "p2e_dv2_exploration_point_mass",
    "p2e_dv2_finetuning",
    "p2e_dv2_finetuning_point_mass",
    "p2e_dv3_5_exploration",
    "p2e_dv3_5_exploration_point_mass",
    "p2e_dv3_5_finetuning",
    "p2e_dv3_5_finetuning_point_mass",
    "p2e_dv3_exploration",
    "p2e_dv3_exploration_point_mass",
    "p2e_dv3_finetuning",
    "p2e_dv3_finetuning_point_mass",
    "p2e_dv3_zero_shot",
    "ppo",
    "ppo_acrobot",
    "ppo_atari",
    "ppo_batched_acrobot",
    "ppo_batched_cartpole",
    "ppo_batched_pendulum",
    "ppo_benchmarks",
    "ppo_cartpole_pixels",
    "ppo_half_cheetah",
    "ppo_inverted_double_pendulum",
    "ppo_lunar_lander",
    "ppo_minigrid",
    "ppo_mujoco",
    "ppo_pendulum",
    "ppo_recurrent",
    "ppo_recurrent_benchmarks",
    "ppo_recurrent_cartpole",
    "ppo_recurrent_minigrid",
    "sac",
    "sac_ae",
    "sac_ae_car_racing",
    "sac_ae_point_mass",
    "sac_batched",
    "sac_benchmarks",
    "sac_dmc_cartpole_balance",
    "sac_half_cheetah",
    "sac_hopper",
    "sac_lunar_lander",
    "sac_mujoco",
    "sac_pendulum",
    "simba",
    "simba_mujoco",
    "simba_pendulum",
)


def at(tree, key):
    for part in key.split("."):
        tree = tree[part]
    return tree


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def folder(tmp_path, files):
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_presets_match_documented_list():
    assert set(presets()) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_compose_of_preset_causes_no_notice(name):
    config, tree = compose([f"exp={name}"])
    of_name = "p2e_dv3_exploration" if name == "p2e_dv3_zero_shot" else name
    assert config.algo.name == max((algo for algo in ALGORITHMS if of_name.startswith(algo)), key=len)
    assert build_config(tree) == config
    # Expected for SheepRL's budgets and benchmarks: incomplete iterations, and models that are not registered.
    expected = ("algo.total_steps=", "model_manager.disabled=true: ")
    assert [notice for notice in notices(config, ()) if not notice.startswith(expected)] == []
    if isinstance(config.algo, OnPolicyConfig):  # every minibatch is full
        assert config.env.num_envs * config.algo.rollout_steps % (config.algo.per_rank_batch_size or 1) == 0


# Every 8th preset and the presets named after algorithms; the others are soak tests.
@pytest.mark.parametrize(
    "name", [pytest.param(p, marks=() if p in (*ALGORITHMS, *PRESETS[::8]) else soak) for p in PRESETS]
)
def test_compose_of_preset_matches_hydra(name):
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(BUILT_IN), version_base="1.3"):
        composed = hydra_compose("config", [f"exp={name}"])
    # Not resolved, because the interpolations need defaults that are not in the files.
    hydra_tree = OmegaConf.to_container(composed, resolve=False)
    _, tree = compose([f"exp={name}"])
    compared = 0
    for key, value in leaves(hydra_tree):
        if "${" not in str(value) and not key.endswith("._target_"):  # Shepherd translates classes to names
            where = key.replace("metric.aggregator.metrics.", "")
            known = tree["metric"]["aggregator"]["metrics"][where] if where != key else at(tree, key)
            assert known == value, key
            compared += 1
    assert compared > 20


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (
            "ppo_acrobot",
            {"env.id": "Acrobot-v1", "env.num_envs": 16, "algo.rollout_steps": 256, "algo.gae_lambda": 0.94},
        ),
        ("ppo_batched_acrobot", {"env.id": "batched/Acrobot-v1", "env.num_envs": 64, "algo.normalize_reward": True}),
        ("ppo_batched_cartpole", {"env.id": "batched/CartPole-v1", "algo.optimizer.lr": 3e-3}),
        ("ppo_batched_pendulum", {"env.id": "batched/Pendulum-v1", "algo.gamma": 0.9}),
        ("ppo_atari", {"env.id": "PongNoFrameskip-v4", "env.frame_stack": 4, "algo.clip_coef": 0.1}),
        ("ppo_minigrid", {"env.id": "MiniGrid-Empty-8x8-v0", "env.screen_size": None}),
        ("ppo_recurrent_minigrid", {"env.id": "MiniGrid-MemoryS7-v0", "algo.per_rank_sequence_length": 32}),
        ("ppo_pendulum", {"env.id": "Pendulum-v1", "algo.gamma": 0.9, "algo.optimizer.lr": 1e-3}),
        ("ppo_lunar_lander", {"env.id": "LunarLander-v3", "algo.gamma": 0.995, "algo.ent_coef": 0.01}),
        ("ppo_half_cheetah", {"env.id": "HalfCheetah-v5", "algo.gae_lambda": 0.92, "algo.optimizer.lr": 2.0633e-5}),
        ("a2c_acrobot", {"env.id": "Acrobot-v1", "env.num_envs": 16, "algo.rollout_steps": 5}),
        ("ppo_mujoco", {"env.id": "Hopper-v5", "algo.normalize_obs": True, "algo.actor.state_dependent_std": False}),
        ("ppo_benchmarks", {"env.num_envs": 1, "algo.encoder.mlp_features_dim": None, "algo.actor.mlp_layers": 0}),
    ],
)
def test_preset_has_published_settings(preset, expected):
    _, tree = compose([f"exp={preset}"])
    assert {key: at(tree, key) for key in expected} == expected


def test_compose_tree_contains_every_key():
    from rlcore.config.run import RunConfig

    _, tree = compose(["exp=ppo"])
    keys = [a.key for a in arguments(RunConfig) if a.key != "algo"]
    keys += [a.key for a in arguments(ALGORITHMS["ppo"].Config, "algo.")]
    for key in keys:
        at(tree, key)


def test_compose_override_beats_preset_beats_group():
    assert compose(["exp=ppo_pendulum"])[0].env.id == "Pendulum-v1"
    assert compose(["exp=ppo_pendulum", "env=mujoco"])[0].env.id == "Pendulum-v1"
    assert compose(["exp=ppo_pendulum", "env=mujoco", "env.id=Ant-v5"])[0].env.id == "Ant-v5"


def test_network_keys_default_to_shared_keys():
    config, _ = compose([*BARE, "algo.dense_units=32", "algo.dense_act=relu", "algo.critic.dense_units=16"])
    assert (config.algo.encoder.dense_units, config.algo.actor.dense_units, config.algo.critic.dense_units) == (
        32,
        32,
        16,
    )
    assert config.algo.actor.dense_act == "relu"


def test_buffer_size_follows_rollout_steps():
    assert compose(["exp=ppo", "algo.rollout_steps=64"])[0].buffer.size == 64


def test_run_name_contains_algorithm_environment_seed_and_time():
    config, _ = compose(["exp=ppo", "env.id=Acrobot-v1", "seed=7"])
    assert config.exp_name == "ppo_Acrobot-v1"
    assert re.fullmatch(r"ppo_Acrobot-v1_7_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", config.run_name)
    assert config.run_dir == f"runs/ppo/Acrobot-v1/{config.run_name}"


@pytest.mark.parametrize("override", ["run_dir=null", "run_dir=''", "~run_dir"])
def test_empty_run_dir_means_default(override):
    config, _ = compose(["exp=ppo", override])
    assert config.run_dir == f"runs/ppo/CartPole-v1/{config.run_name}"


@pytest.mark.parametrize("text", ["runs/a=b", "/tmp/with space (1)", "runs/2024", "'quoted'"])
def test_text_overrides_keep_typed_text(text):
    config, _ = compose(["exp=ppo", f"run_dir={text}", "run_name=2024"])
    assert config.run_dir == text.strip("'")
    assert config.run_name == "2024"


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("a b=c", "a b=c"),  # no config key before the second =
        ("'env.id=A env.num_envs=8'", "env.id=A env.num_envs=8"),
        ("with (brackets) [and] {braces}", "with (brackets) [and] {braces}"),
        ("1e5", "1e5"),
        ("''", ""),
    ],
)
def test_text_overrides_may_contain_spaces_and_equals_signs(typed, text):
    assert compose(["exp=ppo", f"exp_name={typed}", "run_name=x", "run_dir=y"])[0].exp_name == (text or DEFAULT_NAME)


def test_parse_separates_sweeps_from_settings():
    typed = parse(["exp=ppo,ppo_pendulum", "seed=1,2", "algo.gamma=interval(0.9,0.99)", "env.num_envs=4"], groups())
    assert [sweep.key_or_group for sweep in typed.sweeps] == ["exp", "seed", "algo.gamma"]
    assert list(typed.sweeps[1].sweep_string_iterator()) == ["1", "2"]
    assert (typed.sweeps[2].value().start, typed.sweeps[2].value().end) == (0.9, 0.99)
    assert [setting.key_or_group for setting in typed.settings] == ["env.num_envs"]


def test_compose_accepts_python_and_yaml_numbers():
    config, _ = compose([*BARE, "algo.optimizer.lr=1e-3", "evaluation.every=100_000", "algo.gamma=1"])
    assert (config.algo.optimizer.lr, config.evaluation.every, config.algo.gamma) == (1e-3, 100_000, 1.0)


def test_compose_accepts_lists_and_mappings():
    config, _ = compose(
        [*BARE, "algo.lr_schedule=[[0,1e-3],[1000,0]]", "env.wrapper={is_slippery: false}", "env.id=FrozenLake-v1"]
    )
    assert config.algo.lr_schedule == ((0.0, 1e-3), (1000.0, 0.0))
    assert config.env.wrapper == {"is_slippery": False}


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_compose_accepts_hydra_prefixes(prefix):
    assert compose(["exp=ppo", f"{prefix}algo.gamma=0.5"])[0].algo.gamma == 0.5


def test_tilde_override_restores_default():
    assert compose(["exp=ppo_pendulum"])[0].algo.max_grad_norm == 0.5
    assert compose(["exp=ppo_pendulum", "~algo.max_grad_norm"])[0].algo.max_grad_norm == 0.0


def test_optim_group_selects_optimizer():
    adam, sgd = (compose([*BARE, *more])[0].algo.optimizer for more in ([], ["optim@algo.optimizer=sgd"]))
    assert (adam.name, sgd.name, sgd.momentum) == ("adam", "sgd", 0.0)
    assert compose([*BARE, "optim=sgd"])[0].algo.optimizer == sgd


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_fabric_group_selects_ddp(accelerator):
    typed = ["fabric.devices=2", "fabric.strategy=ddp", f"fabric.accelerator={accelerator}"]
    chosen, spelled = (compose(["exp=a2c", *words])[0] for words in ([f"fabric=ddp-{accelerator}"], typed))
    assert chosen.fabric == spelled.fabric and chosen.fabric.ranks == 2


def test_dump_round_trips_through_yaml():
    _, tree = compose(["exp=ppo", "algo.optimizer.eps=1e-5", "group=grün"])
    assert yaml.safe_load(dump(tree)) == tree


def test_available_lists_files_of_group():
    assert available("optim") == ["adam", "adamw", "laprop", "rmsprop", "rmsprop_tf", "sgd"]
    with pytest.raises(UserError, match="'optim'"):
        available("optimm")


@pytest.mark.parametrize("overrides", [["exp=ppo"], ["exp=nope"], ["exp=ppo", "algo.nope=1"], []])
def test_compose_writes_no_files(tmp_path, monkeypatch, overrides):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "home"))
    before = sorted(BUILT_IN.rglob("*"))
    with suppress(UserError):
        compose(overrides)
    assert list(tmp_path.iterdir()) == []
    assert sorted(BUILT_IN.rglob("*")) == before


def test_compose_does_not_initialize_global_hydra():
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    compose(["exp=ppo"])
    assert not GlobalHydra.instance().is_initialized()


def test_compose_is_thread_safe():
    with ThreadPoolExecutor(4) as pool:
        seeds = list(pool.map(lambda seed: compose(["exp=ppo", f"seed={seed}"])[0].seed, range(4)))
    assert seeds == list(range(4))


# --- user folders ---------------------------------------------------------------------------------------------------

OWN = """\
# @package _global_
defaults:
  - override /algo: ppo
  - override /env: mine
  - _self_
algo:
  total_steps: 1234
buffer:
  size: ${algo.rollout_steps}
"""


@pytest.fixture
def user_folder(tmp_path):
    return folder(
        tmp_path / "own", {"exp/mine.yaml": OWN, "env/mine.yaml": "defaults: [gym, _self_]\nid: Acrobot-v1\n"}
    )


@pytest.mark.parametrize("variable", ["SHEPHERD_SEARCH_PATH", "SHEEPRL_SEARCH_PATH"])
@pytest.mark.parametrize("form", ["file://{}", "{}", "file://{};pkg://sheeprl.configs", " ;file://{} ;"])
def test_search_path_accepts_every_form(user_folder, monkeypatch, variable, form):
    monkeypatch.setenv(variable, form.format(user_folder))
    config, _ = compose(["exp=mine"])
    assert (config.algo.total_steps, config.env.id, config.buffer.size) == (1234, "Acrobot-v1", 128)
    assert "mine" in presets()


def test_compose_names_run_after_user_preset(user_folder, monkeypatch):
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(user_folder))
    config, values = compose(["exp=mine", "seed=7"])
    assert (config.label, config.exp_name) == ("mine", "mine_Acrobot-v1")
    assert config.run_name.startswith("mine_Acrobot-v1_7_")
    assert config.root_dir == "ppo/Acrobot-v1"
    assert (model_name(config), model_name(config, "critic")) == ("mine-Acrobot-v1", "mine-Acrobot-v1-critic")
    assert values["label"] == "mine" and params_yaml(["exp=mine"])["label"] == "mine"
    assert compose(["exp=mine", "exp_name=theirs"])[0].run_name.startswith("theirs_42_")  # as in SheepRL
    assert compose(["exp=mine", "label=other"])[0].exp_name == "other_Acrobot-v1"


def test_compose_names_built_in_preset_by_algorithm():
    config, _ = compose(["exp=ppo_acrobot"])
    assert (config.label, config.exp_name, model_name(config)) == ("ppo", "ppo_Acrobot-v1", "ppo-Acrobot-v1")
    assert "label" not in params_yaml(["exp=ppo_acrobot"])


def test_compose_keeps_label_of_preset(user_folder, monkeypatch):
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(user_folder))
    (user_folder / "exp/mine.yaml").write_text(OWN + "label: named\n")
    assert compose(["exp=mine"])[0].exp_name == "named_Acrobot-v1"
    (user_folder / "exp/arm").mkdir()
    (user_folder / "exp/arm/pick.yaml").write_text(OWN)
    assert compose(["exp=arm/pick"])[0].exp_name == "arm_pick_Acrobot-v1"


def test_search_path_entry_is_relative_to_working_directory(user_folder, monkeypatch):
    monkeypatch.chdir(user_folder.parent)
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "file://own")
    assert compose(["exp=mine"])[0].algo.total_steps == 1234


def test_search_path_of_environment_overrides_dotenv(user_folder, tmp_path, monkeypatch):
    (tmp_path / ".env").write_text(f"SHEPHERD_SEARCH_PATH=file://{user_folder}\n")
    monkeypatch.chdir(tmp_path)
    assert compose(["exp=mine"])[0].algo.total_steps == 1234
    assert "SHEPHERD_SEARCH_PATH" not in os.environ
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "")
    with pytest.raises(UserError, match="exp=mine"):
        compose(["exp=mine"])


def test_search_path_first_folder_shadows_later_ones(tmp_path, monkeypatch):
    header = (
        "# @package _global_\ndefaults: [override /algo: ppo, override /env: gym, _self_]\nalgo: {total_steps: %d}\n"
    )
    first = folder(tmp_path / "a", {"exp/ppo.yaml": header % 1})
    second = folder(tmp_path / "b", {"exp/ppo.yaml": header % 2, "exp/other.yaml": header % 3})
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(first))
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", str(second))
    assert compose(["exp=ppo"])[0].algo.total_steps == 1
    assert compose(["exp=other"])[0].algo.total_steps == 3


@pytest.fixture
def nested(tmp_path, monkeypatch):
    files = {
        "exp/arm/pick.yaml": "# @package _global_\ndefaults:\n- override /algo: small/ppo\n- override /env: arm/pick\n"
        "- _self_\nbuffer: {size: '${algo.rollout_steps}'}\n",
        "exp/arm/place/far.yaml": "# @package _global_\ndefaults: [arm/pick, _self_]\nseed: 9\n",
        "exp/arm/wrong.yaml": "# @package _global_\ndefaults: [arm/pick, override /env: arm/pik, _self_]\n",
        "env/arm/pick.yaml": "defaults: [gym, _self_]\nid: Acrobot-v1\n",
        "algo/small/ppo.yaml": "defaults: [ppo, _self_]\nrollout_steps: 32\ntotal_steps: 640\n",
        "sweep/arm/short.yaml": "trials: 3\n",
        "env/.hidden/pick.yaml": "id: Acrobot-v1\n",
    }
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{folder(tmp_path / 'own', files)};pkg://sheeprl.configs")


@pytest.mark.parametrize("preset", ["arm/pick", "arm/pick.yaml", "arm/place/far"])
def test_compose_accepts_files_in_group_subfolders(nested, preset):
    config, _ = compose([f"exp={preset}"])
    assert (config.env.id, config.algo.name, config.algo.rollout_steps) == ("Acrobot-v1", "ppo", 32)
    assert (config.buffer.size, config.seed) == (32, 9 if "far" in preset else 42)
    config, _ = compose(["exp=ppo", "env=arm/pick", "algo=small/ppo", "env.id=Acrobot-v1"])
    assert (config.env.id, config.algo.rollout_steps) == ("Acrobot-v1", 32)


def test_compose_suggests_nearest_file_in_subfolder(nested):
    for overrides in (["exp=arm/pik"], ["exp=arm/wrong"]):
        with pytest.raises(UserError, match=r"=arm/pik: no such file in the group \w+; did you mean 'arm/pick'\?"):
            compose(overrides)
    assert "arm/place/far" in presets() and available("env").count("arm/pick") == 1
    assert not [name for name in available("env") if "hidden" in name]


def test_compose_finds_built_in_files_in_subfolders(tmp_path, monkeypatch):
    built_in = tmp_path / "conf"
    shutil.copytree(BUILT_IN, built_in)
    folder(built_in, {"exp/arm/pick.yaml": "# @package _global_\ndefaults: [ppo, _self_]\nseed: 9\n"})
    monkeypatch.setattr(yaml_files, "BUILT_IN", built_in)
    assert compose(["exp=arm/pick"])[0].seed == 9


def test_sweep_plan_accepts_presets_in_subfolders(nested):
    planned = plan(["sweep=arm/short", "exp=arm/pick", "algo.gamma=interval(0.9,0.99)"])
    assert planned.config.trials == 3 and planned.config.name.startswith("arm_short_")


def test_user_algo_file_without_defaults_gets_default_values(tmp_path, monkeypatch):
    user_folder = folder(tmp_path, {"algo/small.yaml": "name: ppo\ntotal_steps: 100\ndense_units: 8\n"})
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(user_folder))
    config, _ = compose(["exp=default", "algo=small", "env=gym", "buffer.size=${algo.rollout_steps}"])
    assert (config.algo.dense_units, config.algo.gamma, config.buffer.size) == (8, 0.99, 128)


def test_user_group_needs_plus_prefix(tmp_path, monkeypatch):
    user_folder = folder(tmp_path, {"size/small.yaml": "# @package _global_\nalgo: {dense_units: 8}\n"})
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(user_folder))
    assert compose(["exp=ppo", "+size=small"])[0].algo.dense_units == 8
    with pytest.raises(UserError, match="size"):
        compose(["exp=ppo", "size=small"])


# --- existing runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    config, tree = compose(["exp=ppo", "seed=3", "run_name=stored"])
    file = tmp_path / "config.yaml"
    file.write_text(dump(tree))
    return config, tree, file


def test_compose_existing_reads_stored_config(stored):
    config, tree, file = stored
    assert compose_existing(file, []) == (config, tree)


def test_compose_existing_applies_key_overrides(stored):
    config, _, file = stored
    again, tree = compose_existing(file, ["metric.log_every=77", "~metric.log_level", "metric.logger.name=csv"])
    assert (again.metric.log_every, again.metric.logger.name, again.run_name) == (77, "csv", "stored")
    assert again.algo == config.algo
    assert tree["metric"]["log_every"] == 77


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("exp=ppo_pendulum", "exp=ppo_pendulum"),
        ("logger=csv", "logger"),
        ("algo.gama=1", "gamma"),
        ("seed=x", "seed=x"),
    ],
)
def test_compose_existing_refuses_groups_and_mistakes(stored, override, part):
    with pytest.raises(UserError, match=re.escape(part)):
        compose_existing(stored[2], [override])


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "\x00"])
def test_compose_existing_names_damaged_file(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(str(file))):
        compose_existing(file, [])


def test_compose_existing_names_missing_file(tmp_path):
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        compose_existing(Path(tmp_path / "config.yaml"), [])
