"""Preset of a sweep's best configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config.compose import compose
from flows.sweeps.winner import preset

NAMED = ("label", "exp_name", "run_name", "run_dir", "root_dir")


@pytest.mark.parametrize(
    "overrides",
    [
        ["exp=ppo", "algo.optimizer.lr=1.2345678901234567e-05", "algo.update_epochs=7", "algo.anneal_lr=false"],
        ["exp=ppo_acrobot", "env.num_envs=3", "algo.mlp_keys.encoder=[state]", "optim=rmsprop", "logger=csv"],
        ["exp=a2c", "env=mujoco", "env.id=Pendulum-v1", "+env.wrapper.g=9.5", "algo.rollout_steps=16"],
    ],
)
def test_preset_composes_to_original_config(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = preset(overrides, "Best of all.")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine_best.yaml").write_text(text)
    expected = compose(overrides)[1]
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    found = compose(["exp=mine_best"])[1]
    assert {k: v for k, v in found.items() if k not in NAMED} == {k: v for k, v in expected.items() if k not in NAMED}
    assert found["buffer"]["size"] == found["algo"]["rollout_steps"]
