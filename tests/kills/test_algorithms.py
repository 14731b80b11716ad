"""Killed and resumed at random moments: state of algorithms other than parameters.

`make test ALL=1` kills SAC, whose state includes a replay buffer, and Dreamer V3, whose buffer has extras and carries.
Other algorithms are killed in soak tests, which kill every algorithm of `tests/kills/cases.py` in every mode.
`rlcore.conformance` checks without a kill that the state of each algorithm is complete.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rlcore.algorithms import ALGORITHMS
from tests.kills.killing import callback_states
from tests.kills.sampled import check
from tests.probes import world
from tests.soaking import heavy, soak

pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which is not killed


def test_killed_sac_resumes_with_replay_buffer(tmp_path: Path) -> None:
    run = check("Pendulum-v1", ("in-process",), tmp_path, "sac")
    assert any((run.checkpoints / "chunks").iterdir())


def test_killed_extended_run_ends_in_same_bits(tmp_path: Path) -> None:
    run = check("Pendulum-v1", ("extended",), tmp_path, "sac")
    assert (tmp_path / "source/checkpoints/192").exists()
    assert run.read_config()["checkpoint"]["extend_from"] == str(tmp_path / "source/checkpoints/192")


def test_killed_run_with_callbacks_ends_in_same_bits_and_states(tmp_path: Path) -> None:
    run = check("CartPole-v1", ("callbacks",), tmp_path)
    (state,) = callback_states(run).values()
    # 60 iterations of 32 rows in two environments; a checkpoint contains the calls before its own `on_checkpoint`.
    kinds = Counter(kind for kind, *_ in state["calls"])
    assert kinds["iteration"] == state["calls"][-1][1] > 20
    assert kinds["checkpoint"] >= 9 and kinds["evaluation"] >= 3


@soak
def test_killed_extended_run_with_callbacks_ends_in_same_bits_and_states(tmp_path: Path) -> None:
    run = check("Pendulum-v1", ("extended, callbacks",), tmp_path, "sac")
    (state,) = callback_states(run).values()
    # Iterations of two rows. The call after the source's checkpoint is repeated.
    assert state["calls"][0] == ["iteration", 1, 2] and ["checkpoint", 96, 192] in state["calls"]


@soak
def test_killed_recurrent_ppo_resumes_to_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("in-process",), tmp_path, "ppo_recurrent")


@soak
def test_killed_world_model_resumes_to_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "world", world)
    check("discrete_dummy", ("subprocess",), tmp_path, "world")


def test_killed_dreamer_v3_resumes_to_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("in-process",), tmp_path, "dreamer_v3")


@soak
def test_killed_dreamer_v3_5_with_stored_states_resumes_to_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("in-process",), tmp_path, "dreamer_v3_5")


@soak
def test_killed_dreamer_v2_with_exploration_resumes_to_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("subprocess",), tmp_path, "dreamer_v2")


@soak
def test_killed_dreamer_v1_resumes_to_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("in-process",), tmp_path, "dreamer_v1")


@soak
def test_killed_exploration_resumes_to_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("in-process",), tmp_path, "p2e_dv3_exploration")


@soak
def test_killed_fine_tuning_resumes_to_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("in-process",), tmp_path, "p2e_dv3_finetuning")


@soak
def test_killed_sac_ae_on_images_resumes_to_same_bits(tmp_path: Path) -> None:
    check("known/Dot-v0", ("in-process",), tmp_path, "sac_ae")
