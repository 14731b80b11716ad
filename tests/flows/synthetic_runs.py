"""Run directories in the format of `shepherd train`, written without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlcore.store.directory import FORMAT, RunDirectory, write_json
from rlcore.store.events import EventLog

if TYPE_CHECKING:
    import pytest

    from rlcore.config.run import RunConfig

TOTALS: dict[str, Any] = {  # of summary.json
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 5,
    "policy_steps": 4096,
    "env_steps": 4000,
    "updates": 64,
    "wall_s": 2.0,
    "cpu_s": 2.0,
    "policy_steps_per_s": 2048.0,
}


def synthetic_run(folder: Path, run_id: str, **changes: Any) -> RunDirectory:
    """A run directory in the state after `shepherd train` created the run, with a small config.

    Args:
        folder: path of the run directory.
        run_id: id of the run.
        **changes: top-level keys of the config.

    Returns:
        The run directory, with a `start` event.
    """
    run = RunDirectory(folder)
    tree = {
        "algo": {"name": "ppo", "total_steps": 4096, "mlp_keys": {"encoder": ["state"]}, "optimizer": {"lr": 1e-3}},
        "env": {"id": "CartPole-v1", "num_envs": 4, "wrapper": {}},
        "metric": {"log_level": 1, "logger": {"name": "mlflow", "experiment_name": None, "tracking_uri": None}},
        "exp_name": "ppo_CartPole-v1",
        "run_name": folder.name,
        "seed": 5,
        "group": None,
        "init_from": None,
    }
    run.path.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(tree | changes))
    identity = {"format": FORMAT, "run_id": run_id, "algo": "ppo", "env_id": "CartPole-v1", "seed": 5}
    write_json(run.identity, identity | {"commit": "c0ffee", "dirty": False, "lock_hash": "10c4"})
    write_json(run.card, {"env_id": "CartPole-v1"})
    EventLog(run.events).append("start", run_id=run_id, algo="ppo", env_id="CartPole-v1", seed=5)
    return run


def train_a_while(run: RunDirectory, first: int, last: int, every: int = 100) -> None:
    """Append a metrics event with three metrics every `every` policy steps, from `first` to `last` exclusive."""
    log = EventLog(run.events)
    for step in range(first, last, every):
        values = {"Rewards/rew_avg": float(step), "Loss/policy_loss": -step / 7, "Time/sps_train": 1e4}
        log.append("metrics", policy_steps=step, values=values)


def long_log(run: RunDirectory, events: int) -> None:
    """Append events like those of a long PPO run: metrics with clocks, and an evaluation after every 100th."""
    values = {
        "Rewards/rew_avg": 156.0,
        "Game/ep_len_avg": 156.0,
        "Loss/policy_loss": -0.0075,
        "Loss/value_loss": 85.94,
        "Loss/entropy_loss": -0.6005,
        "Info/approx_kl": 0.0039,
        "Info/clip_fraction": 0.0275,
        "Info/grad_norm": 43.72,
        "Info/ent_coef": 0.0,
        "Info/clip_coef": 0.2,
        "Info/learning_rate": 0.00046,
        "Time/sps_env_interaction": 4802.8,
        "Time/sps_train": 618.5,
    }
    with open(run.events, "a") as file:
        for k in range(1, events + 1):
            here = {"time": 1.8e9 + k, "policy_steps": 100 * k, "wall_s": k / 10, "cpu_s": k / 10}
            changing = {name: value + k / 1000 for name, value in values.items()}
            file.write(json.dumps({"kind": "metrics", **here, "values": changing}) + "\n")
            if k % 100 == 0:
                greedy = {"mean": k / 100, "std": 1.0, "ci95": [k / 100 - 1, k / 100 + 1], "episodes": 10}
                file.write(json.dumps({"kind": "evaluation", **here, "final": False, "greedy": greedy}) + "\n")


VECTOR = {"kind": "vector", "window": None, "binds": None, "bounds": None}
CARTPOLE = {
    "id": "CartPole-v1",
    "obs": {"state": VECTOR | {"shape": [4], "dtype": "float32", "n": None, "start": 0}},
    "action": {"space": "Discrete", "shape": [], "dtype": "int64", "nvec": [2], "start": [0], "low": [], "high": []},
}


def checkpointed_run(
    folder: Path, run_id: str, weights: int, spec: dict[str, Any] | None = None, algo: str = "ppo", **keys: Any
) -> RunDirectory:
    """A run directory with a complete config, a card and one checkpoint of an untrained agent.

    Args:
        folder: path of the run directory.
        run_id: id of the run.
        weights: seed of the agent's weights, so that checkpoints can differ.
        spec: spec of the environment, as in its card; default CartPole-v1.
        algo: the algorithm's name.
        **keys: further keys of the algorithm's config.

    Returns:
        The run directory, with the random baseline in its log.
    """
    import torch

    from rlcore.algorithms import ALGORITHMS
    from rlcore.config.build import build
    from rlcore.config.run import RunConfig
    from rlcore.config.schema import defaults
    from rlcore.spec import EnvSpec
    from rlcore.store import checkpoint

    spec = spec or CARTPOLE
    env = EnvSpec.from_json(spec)
    images = [key for key, part in spec["obs"].items() if part.get("kind") == "image"]
    mlp_keys, module = {"encoder": [key for key in spec["obs"] if key not in images]}, ALGORITHMS[algo]
    tree = defaults(RunConfig)
    settings = defaults(module.Config) | {"name": algo, "total_steps": 4096, "mlp_keys": mlp_keys}
    settings |= keys | ({"cnn_keys": {"encoder": images}} if images else {})
    if "learning_starts" in settings:  # must be within this short run
        settings["learning_starts"] = min(settings["learning_starts"], 1024)
    tree |= {"algo": settings, "exp_name": f"{algo}_{spec['id']}"}
    tree["env"]["id"] = spec["id"]
    run = synthetic_run(folder, run_id, **tree)
    write_json(run.card, {"spec": spec, "tier": "snapshot", "fresh_instance": False, "max_episode_steps": 500})
    config = build(module.Config, settings, "algo.")
    agent = module.Agent(config, env, "auto", torch.Generator().manual_seed(weights))
    bookkeeping = {"env_steps": 4096, "wall_s": 2.0, "cpu_s": 2.0, "updates": 64, "fingerprint": {}}
    checkpoint.save(run.checkpoints, 4096, {"learner": {"agent": agent.state_dict()}}, bookkeeping)
    EventLog(run.events).append("baseline", mean=22.0, std=11.0, ci95=[19.8, 24.2], episodes=100)
    return run


DICT_SPEC = CARTPOLE | {
    "id": "Rooms-v0",
    "obs": {
        "position": VECTOR | {"shape": [2, 3], "dtype": "float64", "n": None, "start": 0},
        "room": VECTOR | {"shape": [], "dtype": "int64", "n": 5, "start": 1},
    },
}


def config_of(run: RunDirectory, **changes: Any) -> RunConfig:
    """The validated config of a run, with changed top-level keys."""
    from rlcore.run_config import build_config

    return build_config(yaml.safe_load(run.config.read_text()) | changes)


def evaluations(monkeypatch: pytest.MonkeyPatch, returns: Callable[[str, int], float]) -> list[tuple[str, int, int]]:
    """Replace evaluations by a table (policy digest, episode) -> return; the list records (digest, round, episodes)."""
    import numpy as np

    from rlcore.evaluation import final as judge
    from rlcore.evaluation.policy import load_policy

    requests: list[tuple[str, int, int]] = []

    def side_by_side(
        run: RunDirectory,
        paths: list[Path],
        episodes: int,
        enough: Callable[[list[list[float]]], bool],
        *,
        round: int,
        on_progress: Callable[[int, int], None],
    ) -> list[dict[str, Any]]:
        digests = [load_policy(path).description["digest"] for path in paths]
        requests.extend((digest, round, episodes) for digest in digests)
        values: list[list[float]] = [[] for _ in paths]
        for i in range(episodes):
            for digest, of in zip(digests, values, strict=True):
                of.append(returns(digest, i))
            on_progress(len(paths) * (i + 1), len(paths) * episodes)
            if enough(values):
                break
        spread = [float(np.std(of, ddof=1)) if len(of) > 1 else 0.0 for of in values]
        return [
            {"mean": float(np.mean(of)), "std": std, "episodes": len(of), "returns": of}
            for of, std in zip(values, spread, strict=True)
        ]

    monkeypatch.setattr(judge, "side_by_side", side_by_side)
    return requests


def record_final_evaluation(run: RunDirectory) -> None:
    """Record a final evaluation of the checkpoint, so that it can be registered without an environment."""
    results = {"greedy": {"mean": 300.0, "std": 20.0, "ci95": [296.0, 304.0], "episodes": 100}}
    EventLog(run.events).append("evaluation", policy_steps=4096, final=True, **results)
    write_json(run.evaluations / "4096.json", results)


def named(run: RunDirectory, name: str) -> RunDirectory:
    """The run, with this model name in its config."""
    return configured(run, model_manager={"disabled": False, "models": {"agent": {"model_name": name}}})


def configured(run: RunDirectory, **changes: Any) -> RunDirectory:
    """The run, with changed top-level keys in its config."""
    run.config.write_text(yaml.safe_dump(yaml.safe_load(run.config.read_text()) | changes))
    return run
