"""Training in one or in several segments, and with other monitoring settings, gives the same digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.processes import digest_of
from tests.runs import prepare
from tests.soaking import always, heavy, soak

pytestmark = heavy

LEARNING = {
    "total_steps": 448,
    "algo__normalize_obs": True,
    "algo__normalize_reward": True,
    "algo__anneal_lr": True,
    "algo__anneal_ent_coef": True,
    "algo__ent_coef": 0.01,
    "env__max_episode_steps": 70,
}


def trained(folder: Path, env_id: str = "CartPole-v1", cuts: tuple[int, ...] = (), **settings: Any) -> RunDirectory:
    """A run trained to its end; after the iterations in `cuts` it is saved, closed and loaded from disk."""
    run = prepare(folder, env_id, **LEARNING | settings)
    with run.writing():
        session = RunTrainer(run)
        while True:

            def on_progress(facts: dict[str, Any], session: RunTrainer = session) -> None:
                session.interrupted = session.iterations in cuts

            boundary = session.advance(on_progress)
            if session.interrupted or boundary.done:
                session.save()
            if boundary.done:
                session.close()
                return run
            if session.interrupted:
                session.close()
                session = RunTrainer(run)
                continue
            if "checkpoint" in boundary.due:
                session.save()
            if "evaluate" in boundary.due:
                session.evaluate()


# One environment of each tier; the others only with SOAK=1.
@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param("CartPole-v1", marks=always),
        "Hopper-v5",
        *(pytest.param(i, marks=soak) for i in ("FrozenLake-v1", "Pendulum-v1", "LunarLander-v3")),
    ],
)
def test_training_in_segments_gives_same_digest(env_id: str, tmp_path: Path) -> None:
    # Seven iterations of 64 rows; no checkpoint was due at most cuts.
    whole = digest_of(trained(tmp_path / "one", env_id))
    assert digest_of(trained(tmp_path / "two", env_id, cuts=(4,))) == whole
    assert digest_of(trained(tmp_path / "seven", env_id, cuts=(1, 2, 3, 4, 5, 6))) == whole


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_of(trained(tmp_path_factory.mktemp("plain") / "run"))


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation__every": 10_000, "checkpoint__every": 64, "checkpoint__keep_last": 1, "metric__log_every": 1},
        {"evaluation__every": 64, "evaluation__episodes": 1, "metric__log_level": 0, "exp_name": "a", "run_name": "a"},
        {
            "evaluation__num_envs": 1,
            "evaluation__episodes": 5,
            "metric__disable_timer": True,
            "env__capture_video": True,
        },
        {"checkpoint__every": 10_000, "checkpoint__keep_last": None, "env__sync_env": False},
    ],
    ids=str,
)
def test_monitoring_settings_keep_digest(settings: dict[str, Any], plain: str, tmp_path: Path) -> None:
    assert digest_of(trained(tmp_path / "run", **settings)) == plain


@pytest.mark.parametrize("settings", [{"seed": 1}, {"algo__gamma": 0.98}, {"env__max_episode_steps": 71}], ids=str)
def test_learning_settings_change_digest(settings: dict[str, Any], plain: str, tmp_path: Path) -> None:
    assert digest_of(trained(tmp_path / "run", **settings)) != plain
