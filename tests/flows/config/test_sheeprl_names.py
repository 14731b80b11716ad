"""Compatibility with SheepRL 0.8.4: overrides, defaults, class names and whole config folders."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore.errors import UserError

BARE = ("exp=default", "algo=ppo", "env=gym", "algo.total_steps=65536", "buffer.size=${algo.rollout_steps}")
DOCUMENT = Path(__file__).parents[3] / "docs" / "coming_from_sheeprl.md"

# All public keys of SheepRL's PPO with SheepRL's defaults.
SHEEPRL_DEFAULTS = {
    "num_threads": 1,
    "float32_matmul_precision": "high",
    "dry_run": False,
    "seed": 42,
    "torch_use_deterministic_algorithms": False,
    "torch_backends_cudnn_benchmark": True,
    "torch_backends_cudnn_deterministic": False,
    "cublas_workspace_config": None,
    "exp_name": "ppo_CartPole-v1",
    "root_dir": "ppo/CartPole-v1",
    "log_root": "logs/runs",
    "algo.name": "ppo",
    "algo.total_steps": 65536,
    "algo.per_rank_batch_size": 64,
    "algo.run_test": True,
    "algo.cnn_keys.encoder": [],
    "algo.mlp_keys.encoder": ["state"],  # of exp/ppo
    "algo.anneal_lr": False,
    "algo.gamma": 0.99,
    "algo.gae_lambda": 0.95,
    "algo.gae_method": "loop",
    "algo.update_epochs": 10,
    "algo.loss_reduction": "mean",
    "algo.normalize_advantages": False,
    "algo.clip_coef": 0.2,
    "algo.anneal_clip_coef": False,
    "algo.clip_vloss": False,
    "algo.ent_coef": 0.0,
    "algo.anneal_ent_coef": False,
    "algo.vf_coef": 1.0,
    "algo.rollout_steps": 128,
    "algo.dense_units": 64,
    "algo.mlp_layers": 2,
    "algo.dense_act": "tanh",
    "algo.layer_norm": False,
    "algo.max_grad_norm": 0.0,
    "algo.encoder.cnn_features_dim": 512,
    "algo.encoder.mlp_features_dim": 64,
    "algo.encoder.dense_units": 64,
    "algo.encoder.mlp_layers": 2,
    "algo.encoder.dense_act": "tanh",
    "algo.encoder.layer_norm": False,
    "algo.encoder.ortho_init": False,
    "algo.actor.dense_units": 64,
    "algo.actor.mlp_layers": 2,
    "algo.actor.dense_act": "tanh",
    "algo.actor.layer_norm": False,
    "algo.actor.ortho_init": False,
    "algo.critic.dense_units": 64,
    "algo.critic.mlp_layers": 2,
    "algo.critic.dense_act": "tanh",
    "algo.critic.layer_norm": False,
    "algo.critic.ortho_init": False,
    "algo.optimizer.lr": 1e-3,
    "algo.optimizer.eps": 1e-4,
    "algo.optimizer.weight_decay": 0.0,
    "algo.optimizer.betas": [0.9, 0.999],
    "algo.compile": False,  # SheepRL's algo.compile.enabled
    "env.id": "CartPole-v1",
    "env.num_envs": 4,
    "env.frame_stack": 1,
    "env.sync_env": False,
    "env.screen_size": 64,
    "env.action_repeat": 1,
    "env.grayscale": False,
    "env.clip_rewards": False,
    "env.capture_video": True,
    "env.frame_stack_dilation": 1,
    "env.actions_as_observation.num_stack": -1,
    "env.actions_as_observation.dilation": 1,
    "env.max_episode_steps": None,
    "env.reward_as_observation": False,
    "env.mask_velocities": False,
    "fabric.devices": 1,
    "fabric.num_nodes": 1,
    "fabric.strategy": "auto",
    "fabric.accelerator": "cpu",
    "fabric.precision": "32-true",
    "buffer.size": 128,
    "buffer.memmap": True,
    "buffer.memmap_dir": None,
    "buffer.validate_args": False,
    "buffer.from_numpy": False,
    "buffer.checkpoint": True,
    "buffer.online": False,
    "buffer.share_data": False,
    "checkpoint.every": 100,
    "checkpoint.resume_from": None,
    "checkpoint.save_last": True,
    "checkpoint.keep_last": 5,
    "checkpoint.memmap_buffer": "reference",
    "distribution.validate_args": False,
    "distribution.type": "auto",
    "metric.log_every": 5000,
    "metric.disable_timer": False,
    "metric.log_level": 1,
    "metric.sync_on_compute": False,
    "metric.aggregator.raise_on_missing": False,
    "metric.logger.name": "tensorboard",  # translated from the class name
    "model_manager.disabled": True,
    "run_benchmarks": False,
}
# Keys with another default in Shepherd. The table in docs/coming_from_sheeprl.md lists them.
DEPARTURES = {
    "torch_backends_cudnn_benchmark": False,
    "torch_backends_cudnn_deterministic": True,
    "log_root": "runs",
    "algo.compile": "auto",
    "env.sync_env": True,
    "buffer.memmap": False,
    "checkpoint.every": None,
    "model_manager.disabled": False,
}


def at(tree, key):
    for part in key.split("."):
        tree = tree[part]
    return tree


@pytest.fixture(scope="module")
def default_tree():
    return compose(BARE)[1]


@pytest.mark.parametrize("key", SHEEPRL_DEFAULTS)
def test_default_matches_sheeprl_or_listed_departure(default_tree, key):
    assert at(default_tree, key) == DEPARTURES.get(key, SHEEPRL_DEFAULTS[key])


@pytest.mark.parametrize("key", DEPARTURES)
def test_sheeprl_page_lists_every_departure(key):
    table = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    assert any(f"`{key}`" in line or f"`{key.replace('_', '.', 3)}`" in line for line in table)


def test_compose_accepts_all_sheeprl_defaults():
    typed = ["exp=default", "algo=ppo", "env=gym", "algo.compile.enabled=False", "algo.compile.mode=reduce-overhead"]
    for key, value in SHEEPRL_DEFAULTS.items():
        if key != "algo.compile":
            typed.append(f"{key}=null" if value is None else f"{key}={value}".replace("'", ""))
    _, tree = compose(typed)
    for key, value in SHEEPRL_DEFAULTS.items():
        assert at(tree, key) == value, key


COMMANDS = [
    (["exp=ppo", "env=gym", "env.id=CartPole-v1", "env.num_envs=8"], {"env.num_envs": 8}),
    (["exp=ppo", "fabric.accelerator=cuda", "fabric.precision=bf16-mixed"], {"fabric.precision": "bf16-mixed"}),
    (["exp=ppo", "fabric.precision=bf16"], {"fabric.precision": "bf16"}),
    (["exp=ppo", "fabric.precision=32"], {"fabric.precision": "32"}),
    (["exp=ppo", "fabric.devices=auto"], {"fabric.devices": "auto"}),
    (["exp=ppo", "fabric.devices=[1]", "fabric.accelerator=cuda"], {"fabric.devices": [1]}),
    (["exp=ppo", "fabric.devices='0,1'", "fabric.accelerator=gpu"], {"fabric.devices": "0,1"}),
    (["exp=ppo", "logger=tensorboard"], {"metric.logger.name": "tensorboard"}),
    (["exp=ppo", "logger@metric.logger=tensorboard"], {"metric.logger.name": "tensorboard"}),
    (["exp=ppo", "logger@metric.logger=mlflow"], {"metric.logger.name": "mlflow"}),
    (["exp=ppo", "optim@algo.optimizer=adamw"], {"algo.optimizer.name": "adamw"}),
    (["exp=ppo", "algo.optimizer._target_=torch.optim.AdamW"], {"algo.optimizer.name": "adamw"}),
    (
        ["exp=ppo", "algo.optimizer._target_=sheeprl.algos.dreamer_v3_5.optim.LaProp", "algo.optimizer.warmup=1000"],
        {"algo.optimizer.name": "laprop", "algo.optimizer.warmup": 1000},
    ),
    (["exp=ppo", "algo.dense_act=torch.nn.ReLU"], {"algo.dense_act": "relu", "algo.actor.dense_act": "relu"}),
    (["exp=ppo", "algo.encoder.dense_act=torch.nn.SiLU"], {"algo.encoder.dense_act": "silu"}),
    (["exp=ppo", "algo.dense_act=LeakyReLU"], {"algo.dense_act": "leaky_relu"}),
    (["exp=ppo", "metric.log_level=0", "metric.disable_timer=True"], {"metric.log_level": 0}),
    (
        ["exp=ppo", "metric.aggregator.metrics.Loss/value_loss=max"],
        {"metric.aggregator.metrics": ("Loss/value_loss", "max")},
    ),
    (
        ["exp=ppo", "metric.aggregator.metrics.Mine._target_=torchmetrics.aggregation.SumMetric"],
        {"metric.aggregator.metrics": ("Mine", "sum")},
    ),
    (["exp=ppo", "buffer.share_data=True"], {"buffer.share_data": True}),
    (["exp=ppo", "checkpoint.every=1000", "checkpoint.save_last=True"], {"checkpoint.every": 1000}),
    (["exp=ppo", "checkpoint.resume_from=/some/checkpoint"], {"checkpoint.resume_from": "/some/checkpoint"}),
    (["exp=ppo", "algo.mlp_keys.encoder=[state]", "algo.cnn_keys.encoder=[]"], {"algo.mlp_keys.encoder": ["state"]}),
    (["exp=ppo", "env.wrapper._target_=gymnasium.make", "env.wrapper.render_mode=rgb_array"], {"env.wrapper": {}}),
    (["exp=ppo", "env.wrapper.id=CartPole-v1"], {"env.wrapper": {}}),
    (["exp=ppo", "env.restart_on_exception=true"], {"env.restart_on_exception.attempts": 2}),
    (["exp=ppo", "env.restart_on_exception.wait=5"], {"env.restart_on_exception.attempts": 0}),
    (["exp=ppo", "hydra.run.dir=/nowhere", "hydra.job.chdir=False"], {"seed": 42}),
    (["exp=ppo", "logger=wandb"], {"metric.logger.name": "wandb"}),
    (
        ["exp=ppo", "metric.logger._target_=lightning.pytorch.loggers.WandbLogger", "metric.logger.log_model=true"],
        {"metric.logger.name": "wandb"},
    ),
    (["exp=ppo", "metric.logger.root_dir=x", "metric.logger.version=3"], {"metric.logger.name": "tensorboard"}),
    (["exp=ppo", "model_manager.disabled=True"], {"model_manager.disabled": True}),
    (["exp=ppo.yaml"], {"algo.name": "ppo"}),
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=[" ".join(command) for command, _ in COMMANDS])
def test_compose_accepts_sheeprl_overrides(command, expected):
    _, tree = compose(command)
    for key, value in expected.items():
        if isinstance(value, tuple):
            assert at(tree, key)[value[0]] == value[1]
        else:
            assert at(tree, key) == value


def test_compose_tree_contains_no_class_strings():
    _, tree = compose(["exp=ppo", "algo.dense_act=torch.nn.ELU", "env.wrapper._target_=gymnasium.make"])
    assert "_target_" not in str(tree)
    assert "torch.nn" not in str(tree)


@pytest.mark.parametrize(
    ("target", "suite"),
    [
        ("sheeprl.envs.minedojo.MineDojoWrapper", "MineDojo"),
        ("sheeprl.envs.minerl.MineRLWrapper", "MineRL"),
        ("sheeprl.envs.super_mario_bros.SuperMarioBrosWrapper", "Super Mario Bros"),
    ],
)
def test_wrapper_target_of_unsupported_suite_is_refused(target, suite):
    with pytest.raises(UserError, match=f"{suite} is not supported yet"):
        compose(["exp=ppo", f"env.wrapper._target_={target}"])


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (
            ["env=gym", "env.wrapper._target_=sheeprl.envs.crafter.CrafterWrapper"],
            "creates environments of crafter, but env.id=CartPole-v1 is one of classic control",
        ),
        (["env=atari", "env.wrapper._target_=sheeprl.envs.dmc.DMCWrapper"], "creates environments of dmc, but env.id="),
    ],
)
def test_wrapper_target_of_other_suite_is_refused(typed: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        compose(["exp=ppo", *typed])


# --- copy of SheepRL's config folder, with its keys and class names ---------------------------------------------------

MEAN = "{_target_: torchmetrics.MeanMetric, sync_on_compute: '${metric.sync_on_compute}'}"
PART = (
    "dense_units: '${algo.dense_units}', mlp_layers: '${algo.mlp_layers}', "
    "dense_act: '${algo.dense_act}', layer_norm: '${algo.layer_norm}', ortho_init: False"
)
COPY = {
    "config.yaml": """\
# @package _global_
defaults:
  - _self_
  - algo: default.yaml
  - buffer: default.yaml
  - checkpoint: default.yaml
  - distribution: default.yaml
  - env: default.yaml
  - fabric: default.yaml
  - metric: default.yaml
  - model_manager: default.yaml
  - hydra: default.yaml
  - exp: ???
num_threads: 1
float32_matmul_precision: "high"
dry_run: False
seed: 5
torch_use_deterministic_algorithms: False
torch_backends_cudnn_benchmark: True
torch_backends_cudnn_deterministic: False
cublas_workspace_config: null
exp_name: ${algo.name}_${env.id}
run_name: ${now:%Y-%m-%d_%H-%M-%S}_${exp_name}_${seed}
root_dir: ${algo.name}/${env.id}
log_root: logs/runs
""",
    "algo/default.yaml": """\
name: ???
total_steps: ???
per_rank_batch_size: ???
run_test: True
cnn_keys: {encoder: []}
mlp_keys: {encoder: []}
""",
    "algo/ppo.yaml": f"""\
defaults: [default, /optim@optimizer: adam, _self_]
name: ppo
anneal_lr: False
gamma: 0.99
gae_lambda: 0.95
gae_method: loop
update_epochs: 10
loss_reduction: mean
normalize_advantages: False
clip_coef: 0.2
anneal_clip_coef: False
clip_vloss: False
ent_coef: 0.0
anneal_ent_coef: False
vf_coef: 1.0
rollout_steps: 128
dense_units: 64
mlp_layers: 2
dense_act: torch.nn.Tanh
layer_norm: False
max_grad_norm: 0.0
encoder: {{cnn_features_dim: 512, mlp_features_dim: 64, {PART}}}
actor: {{{PART}}}
critic: {{{PART}}}
optimizer: {{lr: 1e-3, eps: 1e-4}}
compile: {{enabled: False, mode: reduce-overhead, player: True}}
""",
    "optim/adam.yaml": "_target_: torch.optim.Adam\nlr: 2e-4\neps: 1e-04\nweight_decay: 0\nbetas: [0.9, 0.999]\n",
    "optim/sgd.yaml": (
        "_target_: torch.optim.SGD\nlr: 2e-04\nmomentum: 0\nnesterov: false\nweight_decay: 0\ndampening: 0\n"
    ),
    "buffer/default.yaml": (
        "size: ???\nmemmap: True\nmemmap_dir: null\nvalidate_args: False\nfrom_numpy: False\n"
        "checkpoint: True\nonline: False\n"
    ),
    "checkpoint/default.yaml": (
        "every: 100\nresume_from: null\nsave_last: True\nkeep_last: 5\nmemmap_buffer: reference\n"
    ),
    "distribution/default.yaml": "validate_args: False\n",
    "env/default.yaml": """\
id: ???
num_envs: 4
frame_stack: 1
sync_env: False
screen_size: 64
action_repeat: 1
grayscale: False
clip_rewards: False
capture_video: True
frame_stack_dilation: 1
actions_as_observation: {num_stack: -1, noop: "some text", dilation: 1}
max_episode_steps: null
reward_as_observation: False
wrapper: ???
""",
    "env/gym.yaml": """\
defaults: [default, _self_]
id: CartPole-v1
mask_velocities: False
wrapper: {_target_: gymnasium.make, id: "${env.id}", render_mode: rgb_array}
""",
    "env/atari.yaml": """\
defaults: [default, _self_]
id: PongNoFrameskip-v4
action_repeat: 4
max_episode_steps: 27000
wrapper:
  _target_: gymnasium.wrappers.AtariPreprocessing
  env: {_target_: gymnasium.make, id: "${env.id}", render_mode: rgb_array, repeat_action_probability: 0.1}
  noop_max: 30
  terminal_on_life_loss: False
  frame_skip: ${env.action_repeat}
  screen_size: ${env.screen_size}
  grayscale_obs: ${env.grayscale}
  scale_obs: False
  grayscale_newaxis: True
""",
    "fabric/default.yaml": """\
_target_: lightning.fabric.Fabric
devices: 1
num_nodes: 1
strategy: "auto"
accelerator: "cpu"
precision: "32-true"
callbacks:
  - _target_: sheeprl.utils.callback.CheckpointCallback
    keep_last: ${checkpoint.keep_last}
    memmap_buffer: ${checkpoint.memmap_buffer}
""",
    "logger/tensorboard.yaml": """\
_target_: lightning.fabric.loggers.TensorBoardLogger
name: ${run_name}
root_dir: ${log_root}/${root_dir}
version: null
default_hp_metric: True
prefix: ""
sub_dir: null
""",
    "logger/mlflow.yaml": """\
_target_: lightning.pytorch.loggers.MLFlowLogger
experiment_name: ${exp_name}
tracking_uri: ${oc.env:MLFLOW_TRACKING_URI}
run_name: ${algo.name}_${env.id}_${now:%Y-%m-%d_%H-%M-%S}
tags: null
save_dir: null
prefix: ""
artifact_location: null
run_id: null
log_model: false
""",
    "metric/default.yaml": f"""\
defaults: [_self_, /logger@logger: tensorboard]
log_every: 5000
disable_timer: False
log_level: 1
sync_on_compute: False
aggregator:
  _target_: sheeprl.utils.metric.MetricAggregator
  raise_on_missing: False
  metrics:
    Rewards/rew_avg: {MEAN}
    Game/ep_len_avg: {MEAN}
""",
    "model_manager/default.yaml": "disabled: True\nmodels: {}\n",
    "model_manager/ppo.yaml": """\
defaults: [default, _self_]
models:
  agent: {model_name: "${exp_name}_agent", description: "about ${env.id}", tags: {}}
""",
    "hydra/default.yaml": "run: {dir: 'logs/runs/${root_dir}/${run_name}'}\njob: {chdir: False}\n",
    "exp/ppo.yaml": f"""\
# @package _global_
defaults:
  - override /algo: ppo
  - override /env: gym
  - override /model_manager: ppo
  - _self_
algo:
  total_steps: 65536
  per_rank_batch_size: 64
  mlp_keys: {{encoder: [state]}}
distribution: {{type: "auto"}}
buffer: {{share_data: False, size: "${{algo.rollout_steps}}"}}
metric:
  aggregator:
    metrics:
      Loss/value_loss: {MEAN}
      Loss/policy_loss: {MEAN}
      Loss/entropy_loss: {MEAN}
""",
    "algo/ppo_recurrent.yaml": """\
defaults: [ppo, _self_]
name: ppo_recurrent
per_rank_sequence_length: ???
reset_recurrent_state_on_done: True
clip_vloss: False
mlp_layers: 1
dense_act: torch.nn.ReLU
layer_norm: True
rnn:
  lstm: {hidden_size: 64}
  pre_rnn_mlp:
    apply: False
    bias: True
    dense_units: ${algo.encoder.dense_units}
    activation: ${algo.dense_act}
    layer_norm: ${algo.layer_norm}
  post_rnn_mlp:
    apply: False
    bias: True
    dense_units: ${algo.rnn.lstm.hidden_size}
    activation: ${algo.dense_act}
    layer_norm: ${algo.layer_norm}
encoder: {dense_units: 64}
optimizer: {_target_: torch.optim.AdamW, lr: 3e-4}
""",
    "exp/ppo_recurrent.yaml": """\
# @package _global_
defaults: [ppo, override /algo: ppo_recurrent, override /model_manager: ppo_recurrent, _self_]
algo: {rollout_steps: 512, update_epochs: 8, per_rank_num_batches: 8, per_rank_sequence_length: 12, total_steps: 409000}
env: {num_envs: 16}
buffer: {memmap: False}
""",
    "model_manager/ppo_recurrent.yaml": """\
defaults: [default, _self_]
models:
  agent: {model_name: "${exp_name}_agent", description: "about ${env.id}", tags: {}}
""",
}


def write(folder, names=None):
    for name, text in COPY.items():
        if names is None or name in names:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return folder


@pytest.fixture
def sheeprl_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{write(tmp_path)};pkg://sheeprl.configs")


def test_sheeprl_folder_composes_unchanged(sheeprl_folder):
    config, tree = compose(["exp=ppo"])
    for key, value in (SHEEPRL_DEFAULTS | {"seed": 5}).items():
        assert at(tree, key) == value, key
    assert config.run_dir == f"logs/runs/ppo/CartPole-v1/{config.run_name}"
    assert config.env.wrapper == {}
    assert dict(config.model_manager.models["agent"])["model_name"] == "ppo_CartPole-v1_agent"
    assert set(config.metric.aggregator.metrics.values()) == {"mean"}


def test_sheeprl_ppo_recurrent_files_compose_unchanged(sheeprl_folder):
    config, _ = compose(["exp=ppo_recurrent", "env.mask_velocities=True"])
    algo = config.algo
    assert (algo.name, algo.rollout_steps, algo.update_epochs, algo.total_steps) == ("ppo_recurrent", 512, 8, 409_000)
    assert (algo.per_rank_sequence_length, algo.per_rank_num_batches, config.env.num_envs) == (12, 8, 16)
    assert (algo.rnn.lstm.hidden_size, algo.rnn.post_rnn_mlp.activation) == (64, "relu")
    assert (algo.optimizer.name, algo.optimizer.lr, algo.dense_act, algo.layer_norm) == ("adamw", 3e-4, "relu", True)
    assert config.env.mask_velocities and config.buffer.size == 512


def test_wrapper_env_becomes_wrapper_arguments(sheeprl_folder):
    config, tree = compose(["exp=ppo", "env=atari", "algo.cnn_keys.encoder=[rgb]", "env.screen_size=84"])
    assert (config.env.id, config.env.max_episode_steps, config.env.action_repeat) == ("PongNoFrameskip-v4", 27000, 4)
    assert config.env.wrapper == {
        "noop_max": 30,
        "terminal_on_life_loss": False,
        "frame_skip": 4,
        "screen_size": 84,
        "grayscale_obs": False,
        "scale_obs": False,
        "grayscale_newaxis": True,
        "repeat_action_probability": 0.1,
    }
    assert "_target_" not in str(tree)
    with pytest.raises(UserError, match="env.wrapper.env.id=ALE/Pong-v5: differs from env.id=PongNoFrameskip-v4"):
        compose(["exp=ppo", "env=atari", "env.wrapper.env.id=ALE/Pong-v5"])
    with pytest.raises(UserError, match="env.wrapper.env._target_=os.system: this key accepts no class"):
        compose(["exp=ppo", "env=atari", "env.wrapper.env._target_=os.system"])


def test_sheeprl_folder_accepts_shepherd_keys_and_groups(sheeprl_folder):
    config, _ = compose(["exp=ppo", "optim@algo.optimizer=sgd", "evaluation.episodes=3", "logger@metric.logger=csv"])
    assert (config.algo.optimizer.name, config.evaluation.episodes, config.metric.logger.name) == ("sgd", 3, "csv")


def test_sheeprl_mlflow_logger_requires_tracking_uri_variable(sheeprl_folder, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it when it is used in this process
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI is not set"):
        compose(["exp=ppo", "logger@metric.logger=mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    logger = compose(["exp=ppo", "logger@metric.logger=mlflow"])[0].metric.logger
    assert (logger.name, logger.tracking_uri, logger.experiment_name) == (
        "mlflow",
        "http://127.0.0.1:5000",
        "ppo_CartPole-v1",
    )


@pytest.mark.parametrize("names", [["exp/ppo.yaml"], ["exp/ppo.yaml", "algo/ppo.yaml"], ["env/gym.yaml"]])
def test_single_sheeprl_files_mix_with_built_in_files(tmp_path, monkeypatch, names):
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{write(tmp_path, names)}")
    config, _ = compose(["exp=ppo"])
    assert (config.algo.total_steps, config.env.id, config.buffer.size) == (65536, "CartPole-v1", 128)
    assert config.env.sync_env is True


def test_compose_translates_optimizer_and_activation_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as in SheepRL's `algo/sac.yaml` and `exp/sac_benchmarks.yaml`, including the misspelled `optimier`."""
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [sac, _self_]\n"
        "buffer: {sample_next_obs: false}\n"
        "algo:\n"
        "  optimier: {lr: 3e-4, eps: 1e-5}\n"
        "  mlp_keys: {encoder: [state], decoder: [state]}\n"
        "  compile: {enabled: false, mode: reduce-overhead, player: true}\n"
        "  actor: {dense_act: torch.nn.SiLU, optimizer: {_target_: torch.optim.AdamW, fused: true}}\n"
        "  critic: {optimizer: {_target_: torch.optim.Adam, lr: 1e-3}}\n"
        "  alpha: {alpha: 0.5, optimizer: {_target_: torch.optim.SGD, eps: null, betas: null}}\n"
    )
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    algo = compose(["exp=mine"])[0].algo
    assert (algo.actor.optimizer.name, algo.critic.optimizer.name, algo.alpha.optimizer.name) == (
        "adamw",
        "adam",
        "sgd",
    )
    assert (algo.actor.dense_act, algo.alpha.alpha, algo.critic.optimizer.lr) == ("silu", 0.5, 1e-3)
    with pytest.raises(UserError, match=r"algo\.critic\.optimizer\._target_=torch\.optim\.Lion"):
        compose(["exp=mine", "algo.critic.optimizer._target_=torch.optim.Lion"])


OFF_POLICY = {
    "algo/sac.yaml": (
        "defaults: [default, /optim@actor.optimizer: adam, /optim@critic.optimizer: adam, "
        "/optim@alpha.optimizer: adam, _self_]\n"
        "name: sac\ntau: 0.005\ngamma: 0.99\nhidden_size: 256\n"
        "replay_ratio: 1.0\nlearning_starts: 100\nper_rank_pretrain_steps: 0\n"
        "compile: {enabled: False, mode: reduce-overhead, player: True}\n"
        "actor: {hidden_size: '${algo.hidden_size}', optimizer: {lr: 3e-4, eps: 1e-4, fused: True}}\n"
        "critic: {n: 2, hidden_size: '${algo.hidden_size}', target_network_frequency: 1, "
        "optimizer: {lr: 3e-4, eps: 1e-4, fused: True}}\n"
        "alpha: {alpha: 1.0, optimizer: {lr: 3e-4, eps: 1e-4, fused: True}}\n"
    ),
    "algo/droq.yaml": "defaults: [sac, _self_]\nname: droq\nreplay_ratio: 20.0\ncritic: {dropout: 0.01}\n",
    "exp/sac.yaml": (
        "# @package _global_\n"
        "defaults: [override /algo: sac, override /env: gym, override /model_manager: sac, _self_]\n"
        "algo: {total_steps: 1000000, per_rank_batch_size: 256, mlp_keys: {encoder: [state], decoder: [state]}}\n"
        "checkpoint: {every: 50000}\nbuffer: {size: 1000000, checkpoint: True, sample_next_obs: False}\n"
        "env: {id: LunarLanderContinuous-v3}\n"
        "metric: {aggregator: {metrics: {Loss/alpha_loss: {_target_: torchmetrics.MeanMetric, "
        "sync_on_compute: '${metric.sync_on_compute}'}}}}\n"
    ),
    "exp/droq.yaml": (
        "# @package _global_\ndefaults: [sac, override /algo: droq, override /model_manager: droq, _self_]\n"
    ),
    "exp/sac_benchmarks.yaml": (
        "# @package _global_\n"
        "defaults: [default, override /algo: sac, override /env: gym, _self_]\n"
        "run_benchmarks: True\nenv: {id: LunarLanderContinuous-v3, capture_video: False, num_envs: 4}\n"
        "algo: {name: sac, learning_starts: 100, per_rank_batch_size: 256, run_test: False, total_steps: 65536, "
        "optimier: {lr: 3e-4, eps: 1e-5}, mlp_keys: {encoder: [state]}}\n"
        "buffer: {checkpoint: True, sample_next_obs: False, memmap: False, size: 65537}\n"
        "fabric: {devices: 1, accelerator: cpu}\ncheckpoint: {every: 70000, save_last: False}\n"
        "metric: {log_every: 70000, log_level: 0, disable_timer: True}\n"
    ),
}  # same keys as in SheepRL's files of these names


@pytest.mark.parametrize(
    ("exp", "replay_ratio", "total_steps", "dropout"),
    [("sac", 1.0, 1_000_000, 0.0), ("sac_benchmarks", 1.0, 65_536, 0.0), ("droq", 20.0, 1_000_000, 0.01)],
)
def test_sheeprl_off_policy_folder_composes_unchanged(
    exp: str, replay_ratio: float, total_steps: int, dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in OFF_POLICY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{tmp_path}")
    config = compose([f"exp={exp}"])[0]
    algo = config.algo
    assert (algo.name, config.env.id) == (exp.partition("_")[0], "LunarLanderContinuous-v3")
    assert (algo.replay_ratio, algo.total_steps, algo.critic.dropout) == (replay_ratio, total_steps, dropout)
    # Properties that SheepRL's DroQ has in code, not in config files.
    droq = exp == "droq"
    assert (algo.critic.layer_norm, algo.actor.q, algo.policy_delay) == (
        droq,
        *(("mean", None) if droq else ("min", 1)),
    )
    assert (algo.critic.optimizer.lr, algo.critic.optimizer.eps, algo.alpha.alpha) == (3e-4, 1e-4, 1.0)


SAC_AE = {
    "algo/sac_ae.yaml": (
        "defaults: [sac, /optim@encoder.optimizer: adam, /optim@decoder.optimizer: adam, _self_]\n"
        "name: sac_ae\nreplay_ratio: 1.0\nlearning_starts: 1000\nper_rank_pretrain_steps: 1000\n"
        "cnn_channels_multiplier: 1\ndense_units: 64\nmlp_layers: 2\ndense_act: torch.nn.ReLU\nlayer_norm: False\n"
        "cnn_keys: {decoder: '${algo.cnn_keys.encoder}'}\nmlp_keys: {decoder: '${algo.mlp_keys.encoder}'}\n"
        "encoder: {tau: 0.05, features_dim: 50, dense_act: '${algo.dense_act}', optimizer: {lr: 1e-3, eps: 1e-08}}\n"
        "decoder: {l2_lambda: 1e-6, per_rank_update_freq: 1, dense_act: '${algo.dense_act}', "
        "optimizer: {lr: 1e-3, weight_decay: 1e-7, eps: 1e-08}}\n"
        "tau: 0.01\nhidden_size: 1024\n"
        "actor: {per_rank_update_freq: 2, optimizer: {lr: 1e-3, eps: 1e-08}}\n"
        "critic: {per_rank_target_network_update_freq: 2, optimizer: {lr: 1e-3, eps: 1e-08}}\n"
        "alpha: {alpha: 0.1, optimizer: {lr: 1e-4, betas: [0.5, 0.999], eps: 1e-08}}\n"
    ),
    "exp/sac_ae.yaml": (
        "# @package _global_\ndefaults: [sac, override /algo: sac_ae, override /model_manager: sac_ae, _self_]\n"
        "algo: {per_rank_batch_size: 128}\nenv: {frame_stack: 3, screen_size: 84}\n"
    ),
    "model_manager/sac_ae.yaml": (
        "defaults: [default, _self_]\nmodels: {encoder: {model_name: e, description: d, tags: {}}, "
        "decoder: {model_name: e, description: d, tags: {}}, agent: {model_name: a, description: d, tags: {}}}\n"
    ),
}  # same keys as in SheepRL's files of these names


def test_sheeprl_sac_ae_folder_matches_built_in_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = compose(["exp=sac_ae", "algo.total_steps=1000000"])[0].algo
    for name, text in (OFF_POLICY | SAC_AE).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("SHEEPRL_SEARCH_PATH", f"file://{tmp_path}")
    config = compose(["exp=sac_ae"])[0]
    assert config.algo == dataclasses.replace(own, compile=False)  # as in SheepRL's file
    assert (config.env.frame_stack, config.env.screen_size) == (3, 84)
    assert config.model_manager.models.keys() == {"agent"}
