"""What a run may change when it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore.errors import UserError
from rlcore.train.fingerprint import what_is_learned
from rlcore.train.resume_rules import refuse_other_learning


def test_a_key_that_decides_nothing_any_more_is_no_reason_to_refuse() -> None:
    config = compose(["exp=ppo"])[0]
    now = what_is_learned(config, "snapshot", "off")
    before = what_is_learned(config, "snapshot", "off")
    before["config"]["buffer"]["memmap"] = False  # once of the learning half
    refuse_other_learning(before, now, config, Path("mine"))
    for change in ({"gamma": 0.5}, {"of another algorithm": 1}):
        other = before | {"config": before["config"] | {"algo": before["config"]["algo"] | change}}
        with pytest.raises(UserError, match=f"^algo.{next(iter(change))}=.*: mine was trained with "):
            refuse_other_learning(other, now, config, Path("mine"))
