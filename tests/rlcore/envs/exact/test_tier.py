"""Measurement of the exactness tier of environments."""

from __future__ import annotations

import pytest

from rlcore.envs.exact.state import capture
from rlcore.envs.exact.tier import measure_tier, try_boundary
from rlcore.envs.make import EnvSettings, make
from tests.rlcore.envs import probe_envs


@pytest.mark.parametrize(
    ("env_id", "tier", "fresh"),
    [
        ("CartPole-v1", "snapshot", False),
        ("Acrobot-v1", "snapshot", False),
        ("Pendulum-v1", "snapshot", False),
        ("MountainCar-v0", "snapshot", False),
        ("FrozenLake-v1", "snapshot", False),
        ("Taxi-v4", "snapshot", False),
        ("Blackjack-v1", "snapshot", False),
        ("Probe/Counter-v0", "snapshot", False),
        ("LunarLander-v3", "replay", False),
        ("BipedalWalker-v3", "replay", True),  # its Box2D world keeps state of the episode before
        ("Hopper-v5", "replay", False),
        ("HalfCheetah-v5", "replay", False),
        ("Probe/Opaque-v0", "replay", False),
    ],
)
def test_measure_tier_of_known_environments(env_id, tier, fresh):
    report = measure_tier(lambda: make(EnvSettings(env_id)), 3)
    assert (report.tier, report.fresh_instance, report.deterministic) == (tier, fresh, True)
    assert report.episodes > 1 and report.steps > 10
    assert (report.reason == "") == (tier == "snapshot")


def test_measure_tier_detects_need_of_fresh_instance():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"stale": True})), 3)
    assert (report.tier, report.fresh_instance) == ("replay", True)
    assert "used environment differs" in report.reason


def test_measure_tier_of_unseeded_environment_is_boundary():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"wild": True})), 3)
    assert (report.tier, report.deterministic) == ("boundary", False)


def test_measure_tier_detects_incomplete_snapshot():
    assert capture(probe_envs.Hidden())["layers"]
    report = measure_tier(lambda: make(EnvSettings("Probe/Hidden-v0")), 3)
    assert "continued differently" in report.reason


@pytest.mark.parametrize("seed", range(3))
def test_measure_tier_detects_rare_snapshot_deviation(seed):
    report = measure_tier(lambda: make(EnvSettings("Probe/Sticky-v0")), seed)
    assert report.tier == "replay" and "continued differently" in report.reason


def test_measure_tier_detects_shared_state():
    report = measure_tier(lambda: make(EnvSettings("Probe/Hidden-v0")), 3)
    assert (report.tier, report.deterministic) == ("boundary", True)
    assert "two environments in one process influence each other" in report.reason


SEEDLESS = "reset(seed=...) has no effect: 3 other seeds"
SEEDLESS_ONE = "reset(seed=...) has no effect: another seed gave the same episode for the same actions"
USED = "a used environment differs from a new one at step "
SHARED = "two environments in one process influence each other, for example at step "


@pytest.mark.parametrize(
    ("env_id", "wrapper", "lines"),
    [
        ("CartPole-v1", {}, []),
        ("Probe/Opaque-v0", {}, []),
        ("Probe/Opaque-v0", {"stale": True}, [USED]),
        (
            "Probe/Opaque-v0",
            {"wild": True},
            ["reset(seed=...) does not make it deterministic: the same seed and actions"],
        ),
        ("Probe/Counter-v0", {}, [SEEDLESS, USED]),  # it counts its episodes and draws nothing
        ("Probe/Hidden-v0", {}, [SHARED]),
    ],
)
def test_measure_tier_reports_findings(env_id, wrapper, lines):
    report = measure_tier(lambda: make(EnvSettings(env_id, wrapper=wrapper)), 3)
    assert len(report.findings) == len(lines)
    assert all(found.startswith(line) for found, line in zip(report.findings, lines, strict=True))


@pytest.mark.parametrize(("env_id", "lines"), [("discrete_dummy", [SEEDLESS_ONE]), ("CartPole-v1", [])])
def test_try_boundary_reports_seed_without_effect(env_id, lines):
    report = try_boundary(lambda: make(EnvSettings(env_id)), 3, "its engine cannot be copied")
    assert (report.tier, report.deterministic, report.reason) == ("boundary", True, "its engine cannot be copied")
    assert list(report.findings) == lines


def test_measure_tier_is_deterministic():
    reports = [measure_tier(lambda: make(EnvSettings("LunarLander-v3")), 3) for _ in range(2)]
    assert reports[0] == reports[1]
