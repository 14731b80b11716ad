"""Killed and resumed: what an algorithm keeps beside its parameters, at drawn moments.

`make test` kills SAC, whose replay memory is a part of the state, and Dreamer V3, with all that a memory can keep.
Tests of other families are left to a soak, which also kills every algorithm of `tests/kills/cases.py` in every mode.
That the state of each is whole, without a kill, is held by `rlcore.conformance`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.algorithms import ALGORITHMS
from tests.kills.sampled import check
from tests.probes import world
from tests.soaking import heavy, soak

pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which nobody kills


def test_killed_anywhere_a_replay_memory_ends_in_the_same_bits(tmp_path: Path) -> None:
    run = check("Pendulum-v1", ("in-process",), tmp_path, "sac")
    assert any((run.checkpoints / "chunks").iterdir())


@soak
def test_killed_anywhere_a_recurrent_agent_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("in-process",), tmp_path, "ppo_recurrent")


@soak
def test_killed_anywhere_a_world_model_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "world", world)
    check("discrete_dummy", ("subprocess",), tmp_path, "world")


def test_killed_anywhere_a_dreamer_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("in-process",), tmp_path, "dreamer_v3")


@soak
def test_killed_anywhere_a_dreamer_that_explores_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("subprocess",), tmp_path, "dreamer_v2")


@soak
def test_killed_anywhere_a_dreamer_without_a_slow_critic_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("Pendulum-v1", ("in-process",), tmp_path, "dreamer_v1")


@soak
def test_killed_anywhere_an_autoencoder_on_frames_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("known/Dot-v0", ("in-process",), tmp_path, "sac_ae")
