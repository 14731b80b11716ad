"""The runs that are killed: every family of environments that is promised, in-process, in subprocesses, compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.store.directory import RunDirectory
from tests.processes import NO_STORE, shepherd
from tests.runs import SMALL, prepare

ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "HalfCheetah-v5",
    "Hopper-v5",
)
# Normalisers and annealing on; some 30 iterations, 10 checkpoints, 4 evaluations; episodes short enough to end often.
LEARNING = {
    "algo__normalize_obs": True,
    "algo__normalize_reward": True,
    "algo__normalize_advantages": True,
    "algo__anneal_lr": True,
    "algo__anneal_clip_coef": True,
    "algo__ent_coef": 0.01,
    "algo__max_grad_norm": 0.5,
    "env__max_episode_steps": 150,
}
SCHEDULE = {"total_steps": 1920, "checkpoint__every": 192, "evaluation__every": 480, "metric__log_every": 64}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        env_id: the environment.
        mode: "in-process", "subprocess", "compiled", or "flow": the command `shepherd train` as a whole.
    """

    env_id: str
    mode: str

    def __str__(self) -> str:
        return f"{self.env_id} {self.mode}"

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment; MLflow is part of "flow" alone, the others would wait for it."""
        return {} if self.mode == "flow" else NO_STORE

    def settings(self) -> dict[str, Any]:
        """Keys of the config."""
        mode: dict[str, Any] = {"env__sync_env": self.mode != "subprocess", "algo__compile": self.mode == "compiled"}
        return LEARNING | SCHEDULE | mode

    def prepare(self, folder: Path) -> RunDirectory:
        """A run directory ready to be trained; for "flow" nothing yet, the command makes it."""
        if self.mode == "flow":
            return RunDirectory(folder)
        return prepare(folder, self.env_id, **self.settings())

    def command(self, run: RunDirectory) -> list[str]:
        """What starts the run and what goes on with it."""
        if self.mode != "flow":
            return shepherd("stage", "train", str(run.path))
        if run.config.exists():
            return shepherd("resume", str(run.path))
        keys = (
            SMALL
            | {"env.id": self.env_id, "algo.name": "ppo"}
            | {key.replace("__", "."): value for key, value in self.settings().items()}
        )
        keys["algo.total_steps"] = keys.pop("total_steps")
        words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
        return shepherd("train", "exp=ppo", *words, f"run_dir={run.path}")


CASES = tuple(Case(env_id, mode) for mode in ("in-process", "subprocess", "compiled") for env_id in ENVIRONMENTS)
CASES += (Case("CartPole-v1", "flow"), Case("LunarLander-v3", "flow"))


def ordered(case: Case) -> int:
    """A number for a case, to draw from."""
    return CASES.index(case)
