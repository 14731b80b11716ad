"""Conformance check of a batched environment of your own.

from rlcore.conformance.batched_env import check_batched_env

def test_walk():
    check_batched_env(Walk, config={"speed": {"uniform": [0.05, 0.2]}})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings
from rlcore.envs.suites.own import give


def check_batched_env(env: type | Callable[..., Any], *, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check a batched environment like the stage make-env: play random actions, and compare the results.

    `rlcore.envs.exact.batched.check_batched` lists the checks.

    Args:
        env: subclass of `rlcore.envs.batched.env.BatchedEnv`, or a function that is called as `env(num_envs, device)`
            and returns one.
        config: value of `env.config`: parameters of the task, for example with a distribution.

    Returns:
        The environment card.

    Raises:
        UserError: The environment cannot be created, or `config` is invalid.
        EnvironmentFault: A check failed. The message contains the method, the tensor, what was expected, and what was
            returned.
    """
    target = give(env)
    return environment_card(EnvSettings(target.rpartition(".")[2], {"_target_": target}, config=dict(config or {})))
