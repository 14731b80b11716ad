"""Lists of `shepherd agents` and `shepherd envs`."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from flows.cli import catalogue
from flows.cli.catalogue import agents_table, envs, envs_table
from rlcore.algorithms import ALGORITHMS
from rlcore.errors import UserError
from tests.flows.conftest import Printed
from tests.soaking import heavy


def test_agents_table_lists_paper_and_spaces(printed: Printed) -> None:
    text = printed(agents_table(ALGORITHMS))
    assert "Proximal Policy Optimization" in text
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary\n", text)  # Dreamer
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple\n", text)  # PPO
    assert re.search(r"observations +Box, Discrete, images, Dict of these\n", text)
    assert not re.search(r"(actions|observations) *\n", text), "an algorithm without any space"
    assert max(len(line) for line in text.splitlines()) <= 100


def test_agents_table_lists_presets_and_results(printed: Printed) -> None:
    ppo, a2c = (printed(agents_table({name: ALGORITHMS[name]})) for name in ("ppo", "a2c"))
    assert "exp=ppo_pendulum" in ppo and "exp=a2c_acrobot" not in ppo and "exp=ppo_recurrent" not in ppo
    assert "exp=a2c_acrobot" in a2c and "exp=ppo_pendulum" not in a2c
    assert "docs/results/ppo.md" in ppo and "docs/results/a2c.md" in a2c
    assert "docs/results" not in printed(agents_table({"other": ALGORITHMS["ppo"]}))


@pytest.mark.parametrize("error", [UserError("only Box"), IndexError("tuple index out of range")])
def test_agents_table_omits_spaces_that_fail(error: Exception, printed: Printed) -> None:
    from rlcore.algorithms.on_policy.ppo import learner as ppo

    def continuous_only(config: Any, spec: Any, distribution: str, rng: Any) -> Any:
        if not spec.action.continuous:
            raise error
        return ppo.Agent(config, spec, distribution, rng)

    module = SimpleNamespace(__doc__="Another: a paper.", Config=ppo.Config, Agent=continuous_only)
    text = printed(agents_table({"other": module}))
    assert re.search(r"actions +Box\n", text)
    assert re.search(r"observations +Box, Discrete, images, Dict of these\n", text)


def test_agents_table_passes_finite_values_to_plugin_agents(printed: Printed) -> None:
    from rlcore.algorithms.on_policy.ppo import learner as ppo

    class ValueReadingAgent(ppo.Agent):
        def act(self, *given: Any) -> Any:
            acting = super().act(*given)
            assert acting[1].sum().isfinite(), "the tensor must contain values"
            return acting

    module = SimpleNamespace(__doc__="Another: a paper.", Config=ppo.Config, Agent=ValueReadingAgent)
    table = agents_table({"other": module})
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple\n", printed(table))


def test_envs_table_groups_by_suite_with_missing_extra(printed: Printed) -> None:
    old = {"Taxi-v2": "it is gone", "Frozen-v0": "it is slow", "Taxi-v3": "it is gone"}
    here = SimpleNamespace(name="toy text", extra="", installed=True, ids=("Taxi-v4",), note="small", refused=old)
    many = tuple(f"Robot{i}-v5" for i in range(40))
    absent = SimpleNamespace(name="mujoco", extra="mujoco", installed=False, ids=many, note="", refused={})
    text = printed(envs_table([here, absent]))
    assert "toy text · installed · small\n  Taxi-v4\n  not available: Taxi-v2, Taxi-v3 (it is gone)\n" in text
    assert "  not available: Frozen-v0 (it is slow)\n" in text
    assert "mujoco · missing: pip install -e '.[mujoco]'\n" in text
    assert sorted(re.findall(r"Robot\d+-v5", text)) == sorted(many)
    assert max(len(line) for line in text.splitlines()) <= 100


# Agents of Plan2Explore have the networks of a Dreamer and take seconds each.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=heavy if name.startswith("p2e_") else ()) for name in ALGORITHMS]
)
def test_agents_act_in_spaces_allowed_by_config(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For built-in algorithms `shepherd agents` only reads the configs; here the agents act, as for plugins."""

    def spaces(module: Any) -> dict[tuple[str, str], bool]:
        kinds = itertools.product(catalogue.OBSERVATIONS.items(), catalogue.ACTIONS.items())
        return {(obs, action): catalogue._takes(module, part, spec) for (obs, part), (action, spec) in kinds}

    listed = spaces(ALGORITHMS[name])
    monkeypatch.setattr(catalogue, "Algorithm", type("NoAlgorithm", (), {}))
    assert listed == spaces(ALGORITHMS[name])


def test_agents_command_imports_no_torch() -> None:
    code = "import sys; from flows.cli.main import main; main(['agents']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_envs_lists_suites_without_creating_environments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlcore.envs.suites.registry.why_not", lambda *_: pytest.fail("an environment was made"))
    envs()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == ["classic control", "toy text", "box2d", "mujoco"]
    assert len(lines) < 20
    assert any(re.search(r"atari +\d+ +(installed|missing: pip install -e '.\[atari\]')", line) for line in lines)


@pytest.mark.parametrize(
    ("words", "shown", "absent"),
    [
        (["toy", "text"], ["toy text · installed", "Taxi-v4"], ["CartPole-v1", "box2d"]),
        (["classic"], ["classic control", "CartPole-v1"], ["Taxi-v4"]),
        (["pendulum"], ["classic control", "Pendulum-v1"], ["CartPole-v1", "Taxi-v4"]),
        (["cartpole-V1"], ["CartPole-v1"], ["CartPole-v0"]),
    ],
)
def test_envs_filters_by_suite_or_id(
    words: list[str], shown: list[str], absent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    envs(words)
    text = capsys.readouterr().out
    assert [word for word in shown if word not in text] == []
    assert [word for word in absent if word in text] == []


def test_envs_finds_plugin_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(gymnasium.registry, "Meadow-v3", gymnasium.envs.registration.EnvSpec("Meadow-v3", "meadow:Env"))
    envs(["meadow"])
    assert "plugins · installed · registered by your plugins\n  Meadow-v3\n" in capsys.readouterr().out


def test_envs_suggests_nearest_name() -> None:
    with pytest.raises(
        UserError, match=r"cartpool-v1: no suite or environment has this name.*did you mean 'CartPole-v1'"
    ):
        envs(["cartpool-v1"])
