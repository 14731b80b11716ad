"""Which tier an environment is found to hold."""

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
        ("BipedalWalker-v3", "replay", True),  # its world is built once and remembers the episode before
        ("Hopper-v5", "replay", False),
        ("HalfCheetah-v5", "replay", False),
        ("Probe/Opaque-v0", "replay", False),
    ],
)
def test_the_tier_is_found_by_trying(env_id, tier, fresh):
    report = measure_tier(lambda: make(EnvSettings(env_id)), 3)
    assert (report.tier, report.fresh_instance, report.deterministic) == (tier, fresh, True)
    assert report.episodes > 1 and report.steps > 10
    assert (report.reason == "") == (tier == "snapshot")


def test_an_engine_that_remembers_needs_a_fresh_instance():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"stale": True})), 3)
    assert (report.tier, report.fresh_instance) == ("replay", True)
    assert "used environment differs" in report.reason


def test_an_environment_that_no_seed_decides_is_of_the_last_tier():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"wild": True})), 3)
    assert (report.tier, report.deterministic) == ("boundary", False)


def test_a_snapshot_that_looks_complete_but_is_not_is_found_out():
    assert capture(probe_envs.Hidden())["layers"]
    report = measure_tier(lambda: make(EnvSettings("Probe/Hidden-v0")), 3)
    assert "continued differently" in report.reason


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_that_seldom_goes_on_differently_is_found_out(seed):
    report = measure_tier(lambda: make(EnvSettings("Probe/Sticky-v0")), seed)
    assert report.tier == "replay" and "continued differently" in report.reason


def test_environments_that_influence_each_other_are_of_the_last_tier_though_each_is_deterministic():
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
def test_what_its_author_may_not_know_is_told_in_a_line_each(env_id, wrapper, lines):
    report = measure_tier(lambda: make(EnvSettings(env_id, wrapper=wrapper)), 3)
    assert len(report.findings) == len(lines)
    assert all(found.startswith(line) for found, line in zip(report.findings, lines, strict=True))


@pytest.mark.parametrize(("env_id", "lines"), [("discrete_dummy", [SEEDLESS_ONE]), ("CartPole-v1", [])])
def test_of_one_that_is_declared_to_be_of_the_last_tier_a_seed_that_changes_nothing_is_told(env_id, lines):
    report = try_boundary(lambda: make(EnvSettings(env_id)), 3, "its engine cannot be copied")
    assert (report.tier, report.deterministic, report.reason) == ("boundary", True, "its engine cannot be copied")
    assert list(report.findings) == lines


def test_the_same_probe_gives_the_same_report():
    reports = [measure_tier(lambda: make(EnvSettings("LunarLander-v3")), 3) for _ in range(2)]
    assert reports[0] == reports[1]
