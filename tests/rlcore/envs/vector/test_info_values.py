"""Numbers of `info` as statistics of episodes (`env.info_keys`), in one process and in worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.config.groups import EnvConfig, RestartConfig
from rlcore.config.info_keys import InfoKey, metric_names, read_info_keys
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.info_values import read_value
from rlcore.errors import EnvironmentFault, UserError
from rlcore.types import Episode
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.rlcore.envs.vector.test_resume import through_disk

KEYS = ("x", "done_well:last", "deep.y")
INFOS = [
    [{"x": 1, "done_well": False}, {"x": 4.0, "deep": {"y": np.float32(0.5)}}, {"done_well": np.True_}],
    [{"x": np.int64(-2)}, {"x": -4, "deep": {"y": 2.0}, "other": "text"}],
    [{"done_well": True}, {"done_well": False}],
]
# Means of x over the steps that have it: (1 + 4) / 2 and (-2 - 4) / 2. Last done_well: 1, none, 0. Means of deep.y: 0.5
# and 2, each of one step.
EXPECTED = [
    Episode(0, 3.0, 3, {"x": 2.5, "done_well": 1.0, "deep.y": 0.5}),
    Episode(0, 2.0, 2, {"x": -3.0, "deep.y": 2.0}),
    Episode(0, 2.0, 2, {"done_well": 0.0}),
]


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")


def envs_of(
    keys: Any = KEYS,
    infos: Any = INFOS,
    tier: str = "snapshot",
    sync_env: bool = True,
    fails: int = -1,
    drawn: bool = False,
    **more: Any,
) -> Any:
    wrapper = {"infos": infos, "fails": fails, "drawn": drawn}
    config = EnvConfig(id="Probe/Informed-v0", info_keys=tuple(keys), wrapper=wrapper, sync_env=sync_env, **more)
    return make_vector_env(config, num_envs=2, seed=3, tier=tier)


def step(envs: Any, count: int) -> list[Any]:
    return [envs.step(np.zeros(2, np.int64)) for _ in range(count)]


@pytest.mark.parametrize("sync_env", [True, False])
def test_episodes_have_means_and_last_values(sync_env: bool) -> None:
    envs = envs_of(sync_env=sync_env)
    envs.reset()
    step(envs, 3 + 1 + 2 + 1 + 2)  # three episodes and the resets between them
    ended = envs.pop_episodes()
    envs.close()
    assert ended[0].info == {"x": 2.5, "done_well": 1.0, "deep.y": 0.5}
    assert [e for e in ended if e.env_index == 0] == EXPECTED
    assert [(e.ret, e.length, e.info) for e in ended if e.env_index == 1] == [
        (e.ret, e.length, e.info) for e in EXPECTED
    ]


@pytest.mark.parametrize("tier", ["snapshot", "replay", "boundary"])
@pytest.mark.parametrize("sync_env", [True, False])
def test_statistics_of_running_episodes_are_saved(tier: str, sync_env: bool) -> None:
    """At every moment: with ended episodes that were not read, in the middle of an episode, and before a reset."""
    # Worker processes start slowly: only the moment with ended episodes and a first step of the next ones.
    for moment in range(1, 9) if sync_env else [5]:
        whole, part, resumed = (envs_of(tier=tier, sync_env=sync_env, drawn=True) for _ in range(3))
        for envs in (whole, part):
            envs.reset()
            step(envs, moment)
            envs.boundary()
        resumed.load_state_dict(through_disk(part.state_dict()))
        for envs in (whole, resumed):
            step(envs, 9)
        assert resumed.pop_episodes() == (ended := whole.pop_episodes())
        assert len(ended) > 4 and any(e.info for e in ended)
        for envs in (whole, part, resumed):
            envs.close()


def test_state_without_a_key_starts_it_in_the_running_episode() -> None:
    before, after = envs_of(keys=["x"]), envs_of(keys=["x", "deep.y"])
    before.reset()
    step(before, 2)
    after.load_state_dict(through_disk(before.state_dict()))
    step(after, 4)
    first, second = (e.info for e in after.pop_episodes() if e.env_index == 0)
    assert first == {"x": 2.5} and second == {"x": -3.0, "deep.y": 2.0}


def test_restarted_environment_keeps_values_of_truncated_episode() -> None:
    envs = envs_of(fails=0, restart_on_exception=RestartConfig(attempts=5, wait=0.0))
    envs.reset()
    (_, last) = step(envs, 2)
    assert last.truncated.all() and [e.info for e in envs.pop_episodes()] == [{"x": 1.0, "done_well": 0.0}] * 2


def test_no_keys_store_nothing() -> None:
    envs = envs_of(keys=())
    envs.reset()
    step(envs, 3)
    assert "info" not in envs.state_dict() and set(envs.state_dict()["finished"]) == {"env_index", "return", "length"}
    assert envs.pop_episodes()[0] == Episode(0, 3.0, 3)


@pytest.mark.parametrize(
    ("value", "words", "sync_env"),
    [
        ("fast", r"info\['x'\] is 'fast' \(str\), but env.info_keys needs one number", False),
        ("1.5", r"is '1.5' \(str\)", True),
        (np.zeros(3), r"is an array of shape \[3\]", True),
        ([1.0], r"is \[1.0\] \(list\)", True),
        (float("nan"), "is nan, but env.info_keys needs finite numbers", True),
        (10**400, "is 1000", True),
    ],
)
def test_value_that_is_no_number_names_key_and_fix(value: Any, words: str, sync_env: bool) -> None:
    envs = envs_of(keys=["x"], infos=[[{"x": 1.0}, {"x": value}]], sync_env=sync_env)
    envs.reset()
    with pytest.raises(EnvironmentFault, match=f"environment 0, step 2 of its episode: .*{words}.* remove x from"):
        step(envs, 2)
    envs.close()


@pytest.mark.parametrize("value", [3, 3.0, True, np.float32(3), np.array(3), np.uint8(3), np.False_, torch.tensor(3.0)])
def test_read_value_accepts_numbers(value: Any) -> None:
    assert read_value({"x": value}, InfoKey("x", False)) == float(value)


def test_key_with_a_dot_has_priority_over_nested_mappings() -> None:
    key = InfoKey("a.b", False)
    assert read_value({"a.b": 1.0, "a": {"b": 2.0}}, key) == 1.0
    assert read_value({"a": {"b": 2.0}}, key) == 2.0
    assert np.isnan(read_value({"a": 5.0}, key))


def test_keys_are_read_and_invalid_ones_refused_together() -> None:
    assert read_info_keys(["x", "y:mean", "z.u/v:last"]) == (("x", False), ("y", False), ("z.u/v", True))
    assert metric_names(["x:last"]) == ("Game/x", "Evaluation/greedy_x")
    bad = ["x", "x:last", "y:first", "steps", "x_low", "?", ""]
    with pytest.raises(UserError) as error:
        read_info_keys(bad)
    lines = str(error.value).splitlines()
    parts = [
        "'x' is given twice",
        "'y:first' must be NAME or NAME:mean or NAME:last",
        "'steps' is the name of another metric",
        "'x_low' is the name of another metric",
        "'?'",
    ]
    assert len(lines) == 6 and all(part in line for part, line in zip([*parts, "''"], lines, strict=True))
    with pytest.raises(UserError, match="env.info_keys: 'steps'"):
        EnvConfig(id="CartPole-v1", info_keys=("steps",)).check("env.")


def test_vectorized_code_and_batched_environments_refuse_info_keys() -> None:
    settings = {"id": "CartPole-v1", "info_keys": ("x",)}
    with pytest.raises(UserError, match="native: cannot be combined with env.info_keys"):
        make_vector_env(EnvConfig(**settings, vectorization="native"), num_envs=16, seed=0)
    envs = make_vector_env(EnvConfig(**settings), num_envs=16, seed=0)
    assert type(envs).__name__ == "SerialVectorEnv"
