"""Trainings of every algorithm in batched environments, with the replay buffer on the agent's device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.config.compose import compose
from rlcore.config.groups import BufferConfig
from rlcore.conformance.trainings import bits
from rlcore.data.replay import Replay
from tests.contract.test_registry import SETTINGS, every_network
from tests.learning.assembly import Trainer, assemble
from tests.runs import CARD
from tests.soaking import heavy

pytestmark = heavy
HALF, WHOLE = 96, 192  # policy steps


def training(algo: str) -> Trainer:
    settings: dict[str, Any] = {"env_id": "batched/Pendulum-v1", "num_envs": 3, "max_episode_steps": 12}
    return assemble(algo=SETTINGS[algo], buffer=BufferConfig(on_device=True), **settings)


@every_network
def test_batched_training_resumes_to_same_bits(algo: str, tmp_path: Path) -> None:
    whole, first = training(algo).run(WHOLE), training(algo).run(HALF)
    assert whole.learner.updates > 0 and whole.episodes
    resumed = training(algo)
    resumed.load(first.save(tmp_path))
    resumed.run(WHOLE)
    assert bits(resumed) == bits(whole)


def test_preset_of_batched_sac_trains_on_large_batches() -> None:
    config = compose(["exp=sac_batched"])[0]
    assert (config.env.num_envs, config.algo.per_rank_batch_size, config.buffer.on_device) == (1024, 8192, None)
    words = ["env.num_envs=16", "algo.per_rank_batch_size=128", "algo.hidden_size=8", "algo.learning_starts=160"]
    small = compose(["exp=sac_batched", *words, "algo.total_steps=640", "algo.replay_ratio=0.25"])[0]
    trained = Trainer(small, CARD).run(640)
    assert isinstance(trained.buffer, Replay) and trained.buffer.device == trained.fabric.device
    assert trained.learner.updates == 4 * 31  # four after each step of all environments, from the last random one on
