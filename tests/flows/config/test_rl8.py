"""Files of rl8, and the page that maps its names: compared with the names in its package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.batched import TASKS
from flows.config import rl8, rl8_networks
from flows.config.compose import compose
from flows.config.run_file import with_file
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import at, plain
from rlcore.errors import UserError

ROOT = Path(__file__).parents[3]
NAMES: dict[str, Any] = json.loads((ROOT / "tests/golden/rl8_names.json").read_text())
PAGE = (ROOT / "docs/coming_from_rl8.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def mapped() -> set[str]:
    """Return the names in the first column of the tables."""
    return {name for line in PAGE.splitlines() if line.startswith("| `") for name in CODE.findall(line.split(" | ")[0])}


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind not in ("defaults", "data_keys")])
def test_page_maps_every_name_of_rl8(kind: str) -> None:
    names = NAMES[kind]
    flat = {name for of in names.values() for name in of} if isinstance(names, dict) else set(names)
    assert flat and flat <= mapped()


def test_page_names_existing_keys() -> None:
    known = {a.key for a in arguments(RunConfig)}
    known |= {a.key for name in ("ppo", "ppo_recurrent") for a in arguments(ALGORITHMS[name].Config, "algo.")}
    groups = {key.rpartition(".")[0] for key in known}
    texts = [text for line in PAGE.splitlines() if line.startswith("|") for text in CODE.findall(line)]
    used = {part.partition("=")[0] for text in texts for part in text.split() if re.match(r"(algo|env|fabric)\.", part)}
    assert used - {"env.wrapper._target_"} <= known | groups


def test_defaults_are_those_of_rl8() -> None:
    theirs = NAMES["defaults"]["RecurrentAlgorithmConfig"] | {"optimizer_cls": "torch.optim.Adam"}
    assert theirs == rl8.DEFAULTS | rl8.RECURRENT


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return str(path)


def test_file_of_rl8_has_its_defaults(tmp_path: Path) -> None:
    file = file_of(tmp_path, "env_cls: rl8.env.DiscreteDummyEnv\nalgorithm_config: {horizon: 8, gamma: 1}\n")
    config = compose(with_file(file, ["seed=3"]))[0]
    algo, env = config.algo, config.env
    assert (algo.name, env.id, env.num_envs, config.seed) == ("ppo", "batched/rl8-discrete_dummy", 8192, 3)
    assert (algo.rollout_steps, algo.gamma, algo.gae_lambda, algo.total_steps) == (8, 1.0, 0.95, 100 * 8192 * 8)
    assert (algo.per_rank_batch_size, algo.update_epochs, algo.value_loss, algo.value_loss_cap) == (
        None,
        4,
        "smooth_l1",
        5.0,
    )
    assert (algo.advantage_scope, algo.reward_scale, algo.anneal_lr) == ("rollout", "rollout", False)
    assert (algo.optimizer.name, algo.optimizer.lr, algo.optimizer.eps) == ("adam", 1e-3, 1e-8)
    assert (algo.actor.dense_units, algo.actor.mlp_layers, algo.encoder.mlp_layers) == (256, 2, 0)
    assert algo.actor.log_std_bound == 1
    assert (env.endless, env.horizons_per_env_reset, config.evaluation.max_episode_steps) == (True, 1, 8)


def test_recurrent_file_of_rl8_counts_sequences(tmp_path: Path) -> None:
    text = (
        "env_cls: rl8.env.ContinuousDummyEnv\nrecurrent: true\nalgorithm_config:\n"
        "  {num_envs: 64, sgd_minibatch_size: 128, seq_len: 8, seqs_per_state_reset: -1, accumulate_grads: true,\n"
        "   optimizer_cls: torch.optim.SGD, optimizer_config: {lr: 0.1, momentum: 0.9}, device: 'cuda:1',\n"
        "   lr_schedule: [[0, 1.0e-3], [1000, 1.0e-4]], lr_schedule_kind: interp,\n"
        "   distribution_cls: rl8.distributions.SquashedNormal}\n"
    )
    config = compose(with_file(file_of(tmp_path, text), []))[0]
    algo = config.algo
    # 64 environments with 32 / 8 sequences each are 256 sequences, two minibatches of 128.
    assert (algo.per_rank_num_batches, algo.per_rank_sequence_length, algo.sequences_per_state_reset) == (2, 8, None)
    assert (algo.accumulate_minibatches, algo.schedule_kind, algo.lr_schedule[1]) == (None, "linear", (1000, 1e-4))
    assert (algo.optimizer.name, algo.optimizer.lr, algo.optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (config.distribution.type, config.fabric.accelerator, config.fabric.devices) == ("tanh_normal", "cuda", (1,))
    assert (algo.rnn.lstm.hidden_size, algo.actor.mlp_layers, algo.critic.mlp_layers) == (256, 0, 0)


def test_sizes_of_default_models_are_translated(tmp_path: Path) -> None:
    text = (
        "env_cls: rl8.env.DiscreteDummyEnv\nalgorithm_config:\n  model_cls: rl8.models.DefaultDiscreteModel\n"
        "  model_config: {hiddens: [64, 64, 64], activation_fn: swish, bias: true}\n"
    )
    algo = compose(with_file(file_of(tmp_path, text), []))[0].algo
    assert (algo.model, algo.encoder.mlp_layers) == (None, 0)
    for part in (algo.actor, algo.critic):
        assert (part.dense_units, part.mlp_layers, part.dense_act) == (64, 3, "silu")
    text = "env_cls: rl8.env.DiscreteDummyEnv\nrecurrent: true\nalgorithm_config: {model_config: {hidden_size: 32}}\n"
    assert compose(with_file(file_of(tmp_path, text), []))[0].algo.rnn.lstm.hidden_size == 32
    models = {name for name in NAMES["models"] if name.startswith("Default")}
    assert {*rl8_networks.DEFAULT_MODELS} == models


def test_typed_sizes_change_computed_sizes(tmp_path: Path) -> None:
    text = (
        "env_cls: rl8.env.DiscreteDummyEnv\nrecurrent: true\n"
        "algorithm_config: {num_envs: 64, sgd_minibatch_size: 128}\n"
    )
    typed = ["env.num_envs=32", "algo.rollout_steps=64", "algo.per_rank_sequence_length=8"]
    algo = compose(with_file(file_of(tmp_path, text), typed))[0].algo
    # 32 environments with 64 / 8 sequences each are 256 sequences, two minibatches of 128.
    assert (algo.total_steps, algo.per_rank_num_batches) == (100 * 32 * 64, 2)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("recurrent: true", ["env_cls is missing", "rl8.env.DiscreteDummyEnv"]),
        ("env_cls: rl8.env.DummyEnv", ["env_cls=rl8.env.DummyEnv", "unknown class of rl8"]),
        ("env_cls: rl8.env.DiscreteDummyEnv\ntrainer: {}", ["rl8 has no key trainer", "command line"]),
        ("{env_cls: a.B, algorithm_config: {horizn: 8}}", ["rl8 has no key algorithm_config.horizn", "'horizon'"]),
        ("{env_cls: a.B, algorithm_config: {seq_len: 8}}", ["algorithm_config.seq_len", "recurrent: true"]),
        ("{env_cls: a.B, algorithm_config: {model: x, model_cls: a.C}}", ["model and model_cls are both given"]),
        ("{env_cls: a.B, algorithm_config: {model: x}}", ["model=x", "cannot contain a network"]),
        ("{env_cls: a.B, algorithm_config: {model_cls: rl8.models.Model}}", ["model_cls=rl8.models.Model", "plugin"]),
        ("{env_cls: a.B, algorithm_config: {model_config: {hidden: 1}}}", ["model_config.hidden", "'hiddens'"]),
        ("{env_cls: a.B, algorithm_config: {model_config: {hiddens: [64, 32]}}}", ["hiddens=[64, 32]", "model_cls"]),
        ("{env_cls: a.B, algorithm_config: {model_config: {hiddens: 64}}}", ["hiddens=64", "hiddens: [64, 64]"]),
        ("{env_cls: a.B, algorithm_config: {model_config: {activation_fn: selu}}}", ["activation_fn=selu", "tanh"]),
        ("{env_cls: a.B, algorithm_config: {model_config: {bias: false}}}", ["model_config.bias=false", "bias: true"]),
        (
            "{env_cls: a.B, recurrent: true, algorithm_config: {model_config: {num_layers: 2}}}",
            ["num_layers=2", "one layer"],
        ),
        (
            "{env_cls: a.B, recurrent: true, algorithm_config: {model_cls: rl8.models.DefaultDiscreteModel}}",
            ["model_cls=rl8.models.DefaultDiscreteModel", "DefaultDiscreteRecurrentModel", "because recurrent is true"],
        ),
        (
            "{env_cls: a.B, algorithm_config: {optimizer_config: {fused: true}}}",
            ["has no lr, the learning rate of torch"],
        ),
        ("{env_cls: a.B, algorithm_config: {device: tpu}}", ["device=tpu", "auto, cpu, cuda"]),
        (
            "{env_cls: a.B, algorithm_config: {lr_schedule: [[0, 1]], entropy_coeff_schedule: [[0, 1]], "
            "lr_schedule_kind: interp}}",
            ["lr_schedule_kind and entropy_coeff_schedule_kind differ"],
        ),
        ("{env_cls: a.B, recurrent: true, algorithm_config: {seq_len: 0}}", ["seq_len=0", ">= 1", "seq_len: 4"]),
        ("{env_cls: a.B, recurrent: true, algorithm_config: {seq_len: a}}", ["seq_len='a'", ">= 1", "seq_len: 4"]),
        ("{env_cls: a.B, recurrent: true, algorithm_config: {seq_len: 5}}", ["seq_len=5", "divide horizon (32)"]),
        (
            "{env_cls: a.B, recurrent: true, algorithm_config: {seqs_per_state_reset: 3}}",
            ["seqs_per_state_reset=3", "divide the 8 sequences"],
        ),
        ("{env_cls: a.B, algorithm_config: {horizon: null}}", ["horizon=null", ">= 1", "horizon: 32"]),
        ("{env_cls: a.B, algorithm_config: {num_envs: '64'}}", ["num_envs='64'", ">= 1", "num_envs: 64"]),
        (
            "{env_cls: a.B, algorithm_config: {optimizer_config: 3}}",
            ["optimizer_config=3", "a mapping", "leave it out"],
        ),
        ("- 3", ["must contain keys and values"]),
        ("a: [", ["cannot be read"]),
    ],
)
def test_file_with_mistake_names_key_and_reason(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        with_file(file_of(tmp_path, text), [])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        ("optimizer_cls: torch.optim.AdamW", {"name": "adamw", "lr": "0.001", "weight_decay": "0.01"}),
        ("optimizer_cls: torch.optim.sgd.SGD, optimizer_config: {momentum: 0.9}", {"name": "sgd", "momentum": "0.9"}),
        ("optimizer_cls: torch.optim.RMSprop, optimizer_config: {eps: 1e-5}", {"name": "rmsprop", "lr": "0.01"}),
        (
            "optimizer_cls: torch.optim.Adagrad, optimizer_config: {lr: 0.1, lr_decay: 0.2}",
            {"name": "'torch.optim:Adagrad'", "lr": "0.1", "settings": "{lr_decay:0.2}"},
        ),
        (
            "optimizer_config: {lr: 0.1, maximize: false}",
            {"name": "'torch.optim:Adam'", "settings": "{maximize:false}", "betas": "null"},
        ),
        ("optimizer_cls: mine.Lion", {"name": "'mine:Lion'", "lr": "0.001"}),
    ],
)
def test_optimizer_class_has_its_arguments(tmp_path: Path, optimizer: str, keys: dict[str, str]) -> None:
    text = f"{{env_cls: a.B, algorithm_config: {{{optimizer}}}}}"
    assert {f"algo.optimizer.{key}={value}" for key, value in keys.items()} <= {*with_file(file_of(tmp_path, text), [])}


def test_file_of_our_keys_is_nested_or_dotted(tmp_path: Path) -> None:
    text = (
        "exp: ppo\nenv:\n  id: Acrobot-v1\n  num_envs: 8\nalgo.total_steps: 20000\nalgo:\n  optimizer: {lr: 1e-3}\n"
        "metric.aggregator.metrics: {Loss/policy_loss: max}\nlabel: it's\n"
        "stop:\n- all: [{plateau: {metric: Rewards/rew_avg, rtol: 1e-2}}]\n"
    )
    typed = with_file(file_of(tmp_path, text), ["++env.num_envs=3", "seed=1"])
    assert typed[-2:] == ["++env.num_envs=3", "seed=1"]
    assert "env.num_envs=8" not in typed
    config = compose(typed)[0]
    assert (config.env.id, config.env.num_envs, config.algo.total_steps) == ("Acrobot-v1", 3, 20_000)
    assert (config.algo.optimizer.lr, config.label) == (1e-3, "it's")
    assert config.metric.aggregator.metrics["Loss/policy_loss"] == "max"
    assert config.stop == ({"all": [{"plateau": {"metric": "Rewards/rew_avg", "patience": 5, "rtol": 0.01}}]},)


def test_missing_file_is_user_error(tmp_path: Path) -> None:
    assert with_file("", ["exp=ppo"]) == ["exp=ppo"]
    with pytest.raises(UserError, match=r"-f .*nothing.yaml: cannot be read \(.*No such file"):
        with_file(str(tmp_path / "nothing.yaml"), [])


@pytest.mark.parametrize("name", TASKS)
def test_benchmark_has_settings_of_rl8(name: str) -> None:
    task, sizes = TASKS[name], ("algo.dense_units", "algo.total_steps", "algo.per_rank_batch_size")
    config = {"num_envs": task.num_envs, "horizon": task.rows}
    file = {"env_cls": "rl8.env.DiscreteDummyEnv", "recurrent": task.recurrent, "algorithm_config": config}
    overrides, protocol = rl8.to_overrides(file, "file", {}), task.protocol()
    theirs = plain(compose(overrides)[0])
    ours = plain(compose([*protocol.ours, *protocol.words(), f"env.id={protocol.env_id}"])[0])
    keys = {key for key in (line.partition("=")[0] for line in overrides) if key.startswith("algo.")}
    keys -= {*sizes, "algo.optimizer.amsgrad"}  # null and false are the same
    assert {key: at(ours, key) for key in keys} == {key: at(theirs, key) for key in keys}
