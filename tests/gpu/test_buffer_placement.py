"""Place of the replay buffer on a machine with a GPU. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

from flows.config.compose import compose
from rlcore.data.replay import Replay
from rlcore.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")


@pytest.mark.parametrize(
    ("words", "device"),
    [
        (["env=batched", "env.id=batched/Pendulum-v1"], "cuda"),
        (["env=batched", "env.id=batched/Pendulum-v1", "buffer.on_device=false"], "cpu"),
        (["env=gym", "env.id=Pendulum-v1"], "cpu"),
    ],
)
def test_replay_buffer_of_batched_environments_is_on_gpu(words: list[str], device: str) -> None:
    small = ["fabric.accelerator=cuda", "algo.total_steps=1000", "env.num_envs=4", "algo.learning_starts=40"]
    trainer = Trainer(compose(["exp=sac", *words, *small])[0])
    assert isinstance(trainer.buffer, Replay) and torch.device(trainer.buffer.device).type == device
    for _ in range(12):
        trainer.collect()
        trainer.update()
    assert trainer.learner.updates > 0
