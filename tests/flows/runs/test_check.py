"""Refusal of runs that are too large for the machine, before a folder is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.runs.create import new_run
from rlcore.errors import UserError


@pytest.mark.parametrize(
    "override",
    [
        "algo.dense_units=1000000000",
        "algo.rollout_steps=1000000000000",
        "num_threads=100000",
        "env.num_envs=100000000",
        "fabric.devices=64",
    ],
)
def test_new_run_refuses_size_beyond_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlcore.system.free_memory.cores", lambda: 2)
    monkeypatch.setattr("rlcore.system.free_memory.threads", lambda: 30_000)
    with pytest.raises(UserError) as refused:
        new_run(["exp=ppo", override, "run_dir=runs/absurd"])
    key = override.partition("=")[0]
    assert str(refused.value).startswith(f"{override}: this run would need ")
    assert f"; the largest {key} that fits is " in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()
