"""Small prepared runs for tests of the trainer, without Hydra."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from flows.runs.env_card import write_card
from flows.stages.make_env import measure_once
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.config.schema import defaults
from rlcore.config.values import plain
from rlcore.run_config import build_config
from rlcore.store.directory import FORMAT, RunDirectory, write_json

SMALL = {
    "env.num_envs": 2,
    "algo.rollout_steps": 32,
    "algo.per_rank_batch_size": 16,
    "algo.update_epochs": 2,
    "evaluation.episodes": 2,
    "evaluation.final_episodes": 3,
    "evaluation.baseline_episodes": 3,
    "evaluation.num_envs": 2,
    "env.capture_video": False,
}

# What a trainer and an evaluation read of the environment card of a small environment without a time limit.
CARD: dict[str, Any] = {"tier": "snapshot", "fresh_instance": False, "max_episode_steps": None, "endless": False}

# A run on CartPole whose compiled step has every term of the loss and small networks. Building it takes 15 s, so all
# tests that need a real one use this one, from one folder.
COMPILED: dict[str, Any] = {
    "env.num_envs": 3,
    "algo.rollout_steps": 24,
    "algo.per_rank_batch_size": 20,
    "algo.update_epochs": 2,
    "algo.normalize_advantages": True,
    "algo.normalize_obs": True,
    "algo.ent_coef": 0.01,
    "algo.vf_coef": 0.5,
    "algo.max_grad_norm": 0.5,
    "algo.clip_vloss": True,
    "algo.dual_clip": 1.5,
    "algo.anneal_lr": True,
    "algo.anneal_clip_coef": True,
    "algo.anneal_ent_coef": True,
    "algo.encoder.mlp_layers": 0,
    "algo.actor.dense_units": 16,
    "algo.actor.mlp_layers": 1,
    "algo.critic.dense_units": 16,
    "algo.critic.mlp_layers": 1,
    "algo.optimizer.lr": 0.01,
}

# The networks of a Dreamer, as small as they go: of V3, V1 and V2.
_LAYERS = {"dense_units": 8, "mlp_layers": 1}
_WORLD: dict[str, Any] = {
    "discrete_size": 4,
    "stochastic_size": 3,
    "encoder": _LAYERS,
    "recurrent_model": {"recurrent_state_size": 8, "dense_units": 8},
    "transition_model": {"hidden_size": 8},
    "representation_model": {"hidden_size": 8},
    "observation_model": _LAYERS,
    "reward_model": _LAYERS,
    "discount_model": _LAYERS,
}
SMALL_DREAMER: dict[str, Any] = {
    "world_model": _WORLD | {"reward_model": _LAYERS | {"bins": 15}},
    "actor": _LAYERS,
    "critic": _LAYERS | {"bins": 15},
}
SMALL_DREAMER_V1: dict[str, Any] = {
    "world_model": {key: value for key, value in _WORLD.items() if key != "discrete_size"}
    | {"recurrent_model": {"recurrent_state_size": 8}, "use_continues": True, "kl_free_nats": 0.1},
    "actor": _LAYERS | {"expl_amount": 0.2, "expl_decay": 100.0},
    "critic": _LAYERS,
}
SMALL_DREAMER_V2: dict[str, Any] = {
    "world_model": _WORLD | {"use_continues": True, "kl_free_nats": 0.1},
    "actor": _LAYERS | {"expl_amount": 0.2, "expl_decay": 100.0},
    "critic": _LAYERS | {"per_rank_target_network_update_freq": 2},
}
# One hidden layer of the prior, and blocks of four units.
SMALL_DREAMER_V3_5: dict[str, Any] = {
    "world_model": _WORLD
    | {
        "recurrent_model": {"recurrent_state_size": 8, "hidden_size": 8, "blocks": 2},
        "transition_model": {"hidden_size": 8, "layers": 1},
        "observation_model": _LAYERS | {"block_space": 2},
        "reward_model": _LAYERS | {"bins": 15},
    },
    "actor": _LAYERS,
    "critic": _LAYERS | {"bins": 15},
    "optimizer": {"eps": 1e-4, "warmup": 5},  # with a smaller eps, rounding errors of gradients become steps
}


def values(env_id: str, total_steps: int, algo: str = "ppo", **dotted: Any) -> dict[str, Any]:
    """A config as plain values: the classes' defaults, `SMALL`, then `a__b=c` for `a.b=c`."""
    tree = defaults(RunConfig) | {"algo": defaults(ALGORITHMS[algo].Config), "env": defaults(EnvConfig)}
    given = {key.replace("__", "."): value for key, value in dotted.items()}
    own = {f"algo.{field.name}" for field in dataclasses.fields(ALGORITHMS[algo].Config)}
    small = {key: value for key, value in SMALL.items() if not key.startswith("algo.") or key in own}
    for key, value in {**small, "algo.total_steps": total_steps, "env.id": env_id, **given}.items():
        *groups, name = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})  # older keys, such as early_stop.*, have no defaults
        branch[name] = value
    return tree


def prepare(
    path: Path,
    env_id: str = "CartPole-v1",
    total_steps: int = 512,
    card: Callable[[RunDirectory], dict[str, Any]] = measure_once,
    **dotted: Any,
) -> RunDirectory:
    """A run directory with config, card and identity, ready to be trained; `card` measures the environment."""
    return lay_out(path, values(env_id, total_steps, **dotted), card)


def lay_out(
    path: Path, tree: dict[str, Any], card: Callable[[RunDirectory], dict[str, Any]] = measure_once
) -> RunDirectory:
    """As `prepare`, of a whole config as plain values."""
    config = build_config(tree | {"run_dir": str(path)})
    run = RunDirectory(path)
    path.mkdir(parents=True)
    run.media.mkdir()
    run.config.write_text(yaml.safe_dump(plain(config)))
    identity = {
        "format": FORMAT,
        "run_id": path.name,
        "algo": config.algo.name,
        "env_id": config.env.id,
        "seed": config.seed,
    }
    write_json(run.identity, identity | {"commit": "unknown", "dirty": "unknown", "lock_hash": "unknown"})
    write_card(run, card(run))
    return run
