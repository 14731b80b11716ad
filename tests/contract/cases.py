"""Cases of the conformance suite: every registered algorithm with each kind of actions, and each check.

They are in several files, because a test worker runs whole files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from tests.contract.checks import MAIN
from tests.contract.test_registry import ENVS, PAIRS, SETTINGS
from tests.soaking import heavy, soak

# One algorithm of each family is checked by every `make test`. For the Dreamer, these are the checks in `MAIN` without
# the comparison with traced functions, which takes too long. All others are heavy.
ALWAYS = {("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"), ("dreamer_v3", "CartPole-v1")}
FINETUNING = [f"p2e_dv{version}_finetuning" for version in ("1", "2", "3", "3_5")]
# Algorithms that have all checks with discrete actions; all others have them with continuous actions.
DISCRETE = {"ppo", "a2c", "ppo_recurrent", "dreamer_v2", *FINETUNING}
# Fine-tuning has the networks and losses of a Dreamer, and one more actor in its state.
OF_FINETUNING = {
    conformance.interrupted_equals_uninterrupted,
    conformance.state_survives_a_checkpoint,
    conformance.parts_are_complete,
    conformance.a_loaded_policy_acts_alike,
    conformance.a_player_elsewhere_acts_alike,
    conformance.two_ranks_learn_as_one,
    conformance.interrupted_ranks_equal_uninterrupted,
}


def config(algo: str, env_id: str, **changes: Any) -> RunConfig:
    settings = build(ALGORITHMS[algo].Config, SETTINGS[algo] | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id=env_id, num_envs=3, max_episode_steps=12), seed=0)


def is_seldom(algo: str, env_id: str, check: Callable[[RunConfig], None]) -> bool:
    """Return True for a case whose code other cases cover; SOAK=1 runs it."""
    if check is conformance.machine_code_equals_eager:
        return (algo, env_id) != ("a2c", "CartPole-v1")
    if (algo in DISCRETE) != (env_id == ENVS["discrete"]):  # tracing a world model takes seconds
        return check not in MAIN or (check is conformance.compiled_equals_eager and algo.startswith("dreamer"))
    return algo in FINETUNING and check not in OF_FINETUNING


def conformance_case(pair: Any, check: Callable[[RunConfig], None]) -> Any:
    algo, env_id = pair.values
    always = pair.values in ALWAYS and (check in MAIN or not algo.startswith("dreamer"))
    marks = [heavy, soak] if is_seldom(algo, env_id, check) else [] if always else [heavy]
    return pytest.param(algo, env_id, check, id=f"{pair.id}-{check.__name__}", marks=[*pair.marks, *marks])


def cases_of(wanted: Callable[[str], bool]) -> list[Any]:
    """Return (algorithm, environment, check) for all algorithms whose name is wanted."""
    return [conformance_case(pair, check) for pair in PAIRS if wanted(pair.values[0]) for check in conformance.CHECKS]
