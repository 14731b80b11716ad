"""Length limit of evaluation episodes, and the report of truncated ones."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.envs.make import make
from rlcore.envs.spaces import spec_of
from rlcore.evaluation.evaluation import episode_limit, evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.run_config import build_config
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers
from tests.runs import CARD, values


def evaluate(lengths: list[int], own: int | None = None, episodes: int = 3, **more: Any) -> dict[str, Any]:
    """Evaluate random actions in environments with the given episode lengths, for a run of 512 steps."""
    config = build_config(values("Probe/Counter-v0", 512, env__wrapper={"lengths": lengths}, **more.pop("config", {})))
    env = make(config.env)
    agent = RandomAgent(spec_of(env))
    env.close()
    return evaluate_agent(agent, config, CARD | {"max_episode_steps": own}, episodes, greedy=False, **more)


# 1 % of total_steps, at least 2,000; None if the environment itself ends the episode by then.
@pytest.mark.parametrize(
    ("own", "total_steps", "limit"),
    [
        *((own, 512, None) for own in (200, 500, 999, 1_000, 1_600, 2_000)),  # classic control, MuJoCo, Box2D
        (None, 512, 1_000),
        (None, 65_536, 1_000),
        (None, 1_000_000, 10_000),
        (1_000_000, 65_536, 2_000),
        (27_000, 10_000_000, None),
        (27_000, 1_000_000, 10_000),
    ],
)
def test_episode_limit_depends_on_total_steps(own: int | None, total_steps: int, limit: int | None) -> None:
    config = build_config(values("CartPole-v1", total_steps))
    assert episode_limit(config, {"max_episode_steps": own}) == limit


@pytest.mark.parametrize(("own", "limit"), [(None, 300), (500, 300), (200, None)])
def test_episode_limit_obeys_config(own: int | None, limit: int | None) -> None:
    config = build_config(values("CartPole-v1", 512, evaluation__max_episode_steps=300))
    assert episode_limit(config, {"max_episode_steps": own}) == limit


def test_evaluate_agent_truncates_and_reports_endless_episodes(caplog: pytest.LogCaptureFixture) -> None:
    # Two environments, each with an episode of 10 steps, then an endless one; the first environment plays twice.
    result = evaluate([10, 10**9])
    assert (result["episodes"], result["cut"]) == (3, 1)
    assert result["mean_length"] == (10 + 10 + 1_000) / 3
    assert caplog.text.count("1 of 3 episodes were truncated after 1,000 steps") == 1
    assert "evaluation.max_episode_steps" in caplog.text
    assert "env.max_episode_steps" in caplog.text


def test_evaluate_agent_reports_nothing_for_ended_episodes(caplog: pytest.LogCaptureFixture) -> None:
    assert evaluate([1_000], episodes=2)["cut"] == 0  # they end exactly at the limit
    assert "cut" not in caplog.text


def test_evaluate_agent_reports_progress_in_episodes() -> None:
    progress: list[tuple[int, int]] = []
    evaluate([3, 5], on_progress=lambda done, total: progress.append((done, total)))
    # Episodes 0 and 1 end at step 3, and episode 2, after the reset step, at 3 + 1 + 5.
    assert progress == [(0, 3)] * 2 + [(2, 3)] * 6 + [(3, 3)]
