"""Warnings of MuJoCo in the log, for both suites that use it."""

from __future__ import annotations

import logging

import pytest

from rlcore.envs.make import EnvSettings, make
from rlcore.envs.suites import mujoco_warnings


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "cheetah_run"])
def test_mujoco_warning_is_logged_once_without_deprecations(
    env_id: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    mujoco = pytest.importorskip("mujoco")
    mujoco_warnings._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        make(EnvSettings(env_id)).close()  # both files have `settotalmass`, which is deprecated
        assert not caplog.messages
        tell = mujoco.get_mju_user_warning()
        for _ in range(2):
            tell("Nan, Inf or huge value in QACC")
    assert caplog.messages == ["MuJoCo: Nan, Inf or huge value in QACC"]
    assert "settotalmass" not in "".join(capfd.readouterr())
