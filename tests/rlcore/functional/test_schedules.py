from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlcore.algorithms.on_policy.config import Schedule
from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.config.build import build
from rlcore.config.schema import arg
from rlcore.errors import UserError
from rlcore.functional.schedules import anneal, check_points, piecewise

POINTS = ((0.0, 1.0), (100.0, 0.5), (300.0, 0.1))


@pytest.mark.parametrize(("policy_steps", "expected"), [(0, 2.0), (25, 1.5), (100, 0.0), (140, 0.0)])
def test_anneal_decreases_linearly_to_zero(policy_steps: int, expected: float) -> None:
    assert anneal(2.0, policy_steps, 100) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("policy_steps", "linear", "step"),
    [
        (0, 1.0, 1.0),
        (50, 0.75, 1.0),
        (99, 0.505, 1.0),
        (100, 0.5, 0.5),
        (200, 0.3, 0.5),
        (300, 0.1, 0.1),
        (9_999, 0.1, 0.1),
    ],
)
def test_piecewise_interpolates_or_holds(policy_steps: int, linear: float, step: float) -> None:
    assert piecewise(POINTS, policy_steps, "linear") == pytest.approx(linear)
    assert piecewise(POINTS, policy_steps, "step") == pytest.approx(step)


def test_piecewise_holds_first_value_before_first_point() -> None:
    late = ((50.0, 3.0), (60.0, 1.0))
    assert piecewise(late, 0, "linear") == piecewise(late, 49, "step") == 3.0


def test_check_points_requires_increasing_nonnegative_steps() -> None:
    assert check_points(POINTS) is None
    assert check_points(()) is not None
    assert check_points(((10.0, 1.0), (10.0, 2.0))) is not None
    assert check_points(((-1.0, 1.0),)) is not None


def config(**keys: object) -> Config:
    return build(Config, {"name": "ppo", "total_steps": 1000, **keys}, "algo.")


def test_coefficient_follows_schedule_and_annealing() -> None:
    assert config(ent_coef=0.3).coefficient("ent_coef", 500) == 0.3
    assert config(ent_coef=0.3, anneal_ent_coef=True).coefficient("ent_coef", 500) == pytest.approx(0.15)
    assert config(clip_coef_schedule=[[0, 0.4], [1000, 0.2]]).coefficient("clip_coef", 500) == pytest.approx(0.3)
    piecewise_constant = config(lr_schedule=[[0, 0.4], [600, 0.2]], schedule_kind="step")
    assert piecewise_constant.coefficient("lr", 599) == 0.4


def test_config_refuses_schedule_with_annealing_or_decreasing_steps() -> None:
    with pytest.raises(UserError, match=r"algo.lr_schedule cannot be combined with algo.anneal_lr=true"):
        config(lr_schedule=[[0, 1.0]], anneal_lr=True)
    with pytest.raises(UserError, match=r"algo.clip_coef_schedule=.*must increase"):
        config(clip_coef_schedule=[[10, 1.0], [5, 0.5]])


@pytest.mark.parametrize(
    "keys",
    [
        {"clip_coef_schedule": [[0, 0]]},
        {"lr_schedule": [[0, 0], [500, 0]]},
        {"lr_schedule": [[0, 0], [2000, 1.0]], "schedule_kind": "step"},  # the second point is after the end
    ],
)
def test_config_refuses_schedule_that_is_zero_during_whole_training(keys: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"_schedule=.* is 0 during the whole training \(algo.total_steps=1000\), so"):
        config(**keys)


def test_config_permits_schedule_that_is_zero_at_times() -> None:
    config(clip_coef_schedule=[[0, 0.2], [1000, 0]])
    config(lr_schedule=[[0, 0], [2000, 1.0]])
    config(ent_coef_schedule=[[0, 0]])  # no entropy bonus, like ent_coef=0


@dataclass(frozen=True, kw_only=True)
class _TraceConfig(Config):
    anneal_gae_lambda: bool = arg(False, "")
    gae_lambda_schedule: Schedule = arg(None, "")


def test_config_refuses_schedule_beyond_limit_of_coefficient() -> None:
    with pytest.raises(UserError, match=r"^algo.gae_lambda_schedule=\[\[0.0, 1.5\]\]: values .* not be above 1"):
        build(_TraceConfig, {"name": "ppo", "total_steps": 1000, "gae_lambda_schedule": [[0, 1.5]]}, "algo.")
