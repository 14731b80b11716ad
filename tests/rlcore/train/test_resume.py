"""Changes of the config with which a run may resume."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore.errors import UserError
from rlcore.train.fingerprint import learning_settings
from rlcore.train.resume import other_learning, refuse_other_learning


def test_resume_ignores_keys_without_effect() -> None:
    config = compose(["exp=ppo"])[0]
    now = learning_settings(config, "snapshot", "off")
    before = learning_settings(config, "snapshot", "off")
    before["config"]["buffer"]["memmap"] = False  # was a learning key in an earlier version
    refuse_other_learning(before, now, config, Path("mine"))
    for change in ({"gamma": 0.5}, {"of another algorithm": 1}):
        other = before | {"config": before["config"] | {"algo": before["config"]["algo"] | change}}
        with pytest.raises(UserError, match=f"^algo.{next(iter(change))}=.*: mine was trained with "):
            refuse_other_learning(other, now, config, Path("mine"))


def test_other_learning_ignores_new_and_ineffective_keys() -> None:
    now = learning_settings(compose(["exp=ppo"])[0], "snapshot", "off")
    before = copy.deepcopy(now)
    for key in ("warmup", "groups", "clip_norm"):
        del before["config"]["algo"]["optimizer"][key]
    before["config"]["buffer"]["memmap"] = False
    before["config"]["env"]["vectorization"] = "single"
    older = copy.deepcopy(before)
    older["config"]["env"]["vectorization"] = "native"
    for one, other in ((before, now), (now, before), (before, older)):
        assert list(other_learning(one, other)) == []
    now["config"]["algo"]["optimizer"]["clip_norm"] = "tensor"
    before["config"]["algo"]["gamma"] = 0.5
    gamma = now["config"]["algo"]["gamma"]
    expected = [("algo.gamma", 0.5, gamma), ("algo.optimizer.clip_norm", None, "tensor")]
    assert list(other_learning(before, now)) == expected
    assert list(other_learning(now, before)) == [(name, new, old) for name, old, new in expected]
