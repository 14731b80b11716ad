"""Lists of `shepherd agents` and `shepherd envs`."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli.catalogue import agents_table, envs_table
from rlcore.errors import UserError
from tests.flows.conftest import Printed


def test_agents_are_listed_with_paper_actions_and_observations(printed: Printed) -> None:
    from rlcore.algorithms import ALGORITHMS

    text = printed(agents_table(ALGORITHMS))
    assert "Proximal Policy Optimization" in text
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary\n", text)
    assert re.search(r"observations +Box, Discrete, images, Dict of these\n", text)
    assert not re.search(r"(actions|observations) *\n", text), "an algorithm that takes nothing is none"
    assert max(len(line) for line in text.splitlines()) <= 100


def test_agents_are_listed_with_their_presets_and_where_it_stands_what_these_reach(printed: Printed) -> None:
    from rlcore.algorithms import ALGORITHMS

    ppo, a2c = (printed(agents_table({name: ALGORITHMS[name]})) for name in ("ppo", "a2c"))
    assert "exp=ppo_pendulum" in ppo and "exp=a2c_acrobot" not in ppo and "exp=ppo_recurrent" not in ppo
    assert "exp=a2c_acrobot" in a2c and "exp=ppo_pendulum" not in a2c
    assert "docs/results/ppo.md" in ppo and "docs/results/a2c.md" in a2c
    assert "docs/results" not in printed(agents_table({"other": ALGORITHMS["ppo"]}))


@pytest.mark.parametrize("error", [UserError("only Box"), IndexError("tuple index out of range")])
def test_an_agent_that_refuses_a_space_or_fails_there_is_not_said_to_take_it(
    error: Exception, printed: Printed
) -> None:
    from rlcore.algorithms.ppo import learner as ppo

    def continuous_only(config: Any, spec: Any, distribution: str, rng: Any) -> Any:
        if not spec.action.continuous:
            raise error
        return ppo.Agent(config, spec, distribution, rng)

    module = SimpleNamespace(__doc__="Another: a paper.", Config=ppo.Config, Agent=continuous_only)
    text = printed(agents_table({"other": module}))
    assert re.search(r"actions +Box\n", text)
    assert re.search(r"observations +Box, Discrete, images, Dict of these\n", text)


def test_an_agent_whose_code_reads_numbers_is_tried_with_some(printed: Printed) -> None:
    from rlcore.algorithms.ppo import learner as ppo

    class Reading(ppo.Agent):
        def act(self, *given: Any) -> Any:
            acting = super().act(*given)
            assert acting[1].sum().isfinite(), "of a tensor that holds nothing torch does not say"
            return acting

    module = SimpleNamespace(__doc__="Another: a paper.", Config=ppo.Config, Agent=Reading)
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary\n", printed(agents_table({"other": module})))


def test_environments_are_listed_by_suite_with_the_missing_extra(printed: Printed) -> None:
    old = {"Taxi-v2": "it is gone", "Frozen-v0": "it is slow", "Taxi-v3": "it is gone"}
    here = SimpleNamespace(name="toy text", extra="", installed=True, ids=("Taxi-v4",), note="small", refused=old)
    many = tuple(f"Robot{i}-v5" for i in range(40))
    absent = SimpleNamespace(name="mujoco", extra="mujoco", installed=False, ids=many, note="", refused={})
    text = printed(envs_table([here, absent]))
    assert "toy text · installed · small\n  Taxi-v4\n  not here: Taxi-v2, Taxi-v3 (it is gone)\n" in text
    assert "  not here: Frozen-v0 (it is slow)\n" in text
    assert "mujoco · missing: pip install -e '.[mujoco]'\n" in text
    assert sorted(re.findall(r"Robot\d+-v5", text)) == sorted(many)
    assert max(len(line) for line in text.splitlines()) <= 100
