"""Whole runs on a GPU, killed and resumed. Skipped, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kills.sampled import check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")


@pytest.mark.parametrize(
    ("algo", "env_id"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"), ("dreamer_v3", "CartPole-v1")]
)
def test_killed_anywhere_a_run_on_a_gpu_ends_in_the_same_bits(algo: str, env_id: str, tmp_path: Path) -> None:
    check(env_id, ("gpu, compiled",), tmp_path, algo)


def test_killed_anywhere_a_run_on_a_gpu_as_it_is_written_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("gpu",), tmp_path)
