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
from tests.contract.test_registry import PAIRS, SETTINGS
from tests.soaking import heavy, soak

# Tracing a world model takes seconds, so one kind of action per Dreamer; together: each actor loss and each noise.
TRACED_SELDOM = {("dreamer_v1", "CartPole-v1"), ("dreamer_v2", "Pendulum-v1")}
TRACED_SELDOM |= {("dreamer_v3", "CartPole-v1"), ("dreamer_v3_5", "CartPole-v1")}
# Fine-tuning has the losses of the Dreamer, and exploration those of the Dreamer with another reward.
TRACED_SELDOM |= {(f"p2e_dv{version}_finetuning", "CartPole-v1") for version in ("1", "2", "3", "3_5")}
# One algorithm of each family is checked by every `make test`, the Dreamer with the checks in `MAIN` only, which take
# seconds each. All others are heavy.
ALWAYS = {("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"), ("dreamer_v3", "CartPole-v1")}


def config(algo: str, env_id: str, **changes: Any) -> RunConfig:
    settings = build(ALGORITHMS[algo].Config, SETTINGS[algo] | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id=env_id, num_envs=3, max_episode_steps=12), seed=0)


def conformance_case(pair: Any, check: Callable[[RunConfig], None]) -> Any:
    built = check is conformance.machine_code_equals_eager and pair.values != ("a2c", "CartPole-v1")
    seldom = check is conformance.compiled_equals_eager and pair.values in TRACED_SELDOM
    always = pair.values in ALWAYS and (check in MAIN or not pair.values[0].startswith("dreamer"))
    marks = soak if built or seldom else () if always else heavy
    return pytest.param(
        *pair.values, check, id=f"{pair.id}-{check.__name__}", marks=(*pair.marks, marks) if marks else ()
    )


def cases_of(wanted: Callable[[str], bool]) -> list[Any]:
    """Return (algorithm, environment, check) for all algorithms whose name is wanted."""
    return [conformance_case(pair, check) for pair in PAIRS if wanted(pair.values[0]) for check in conformance.CHECKS]
