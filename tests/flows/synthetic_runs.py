"""Run directories as `shepherd train` leaves them, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlcore.run.directory import RunDirectory, write_json
from rlcore.run.record import EventLog


def synthetic_run(folder: Path, run_id: str, **changes: Any) -> RunDirectory:
    """A run directory as `shepherd train` would leave it after creating the run, with a small config.

    Args:
        folder: where.
        run_id: its identity.
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
    write_json(run.identity, {"run_id": run_id, "commit": "c0ffee", "dirty": False, "lock_hash": "10c4"})
    write_json(run.card, {"env_id": "CartPole-v1"})
    EventLog(run.events).append("start", run_id=run_id, algo="ppo", env_id="CartPole-v1", seed=5)
    return run


def train_a_while(run: RunDirectory, first: int, last: int, every: int = 100) -> None:
    """Append a metrics event with three metrics every `every` env steps, from `first` to `last` exclusive."""
    log = EventLog(run.events)
    for step in range(first, last, every):
        values = {"Rewards/rew_avg": float(step), "Loss/policy_loss": -step / 7, "Time/sps_train": 1e4}
        log.append("metrics", env_steps=step, values=values)
