"""Components of a learner: start from another run, explorers as behavior policy, and separate behavior policies."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flows.runs.create import new_run
from flows.stages.make_env import make_env
from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import bits, fresh, run
from rlcore.errors import RunError, UserError
from rlcore.evaluation.policy import load_policy, read_source, write_policy_folder
from rlcore.protocols import Stateful
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.components import check_finite, parameters, start_from
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.trainer import Trainer
from rlcore.types import Batch
from tests.contract.test_registry import SETTINGS
from tests.probes import q_learning


def config(algo: str, **changes: Any) -> RunConfig:
    settings = build(ALGORITHMS[algo].Config, SETTINGS[algo] | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="Pendulum-v1", num_envs=3, max_episode_steps=12), seed=0)


def equal_parts(one: Trainer, other: Trainer, *parts: str) -> list[bool]:
    """Return for each component whether all parameters are equal in both."""
    mine, theirs = parameters(one.learner), parameters(other.learner)
    return [all(torch.equal(mine[name], theirs[name]) for name in mine if name.startswith(f"{at}.")) for at in parts]


def test_start_from_loads_agent_critics_and_target() -> None:
    source = run(fresh(config("sac")))
    other = fresh(dataclasses.replace(config("sac"), seed=1))
    message = start_from(other.learner, source.learner.state_dict(), "runs/a")
    assert message == "init_from=runs/a: loaded agent, critics, target"
    assert equal_parts(source, other, "agent", "critics", "target", "temperature") == [True, True, True, False]
    assert other.learner.critic_optimizer.count == 0 < source.learner.critic_optimizer.count


def test_start_from_skips_or_refuses_other_shapes() -> None:
    state = run(fresh(config("sac"))).learner.state_dict()
    wide = fresh(config("sac", critic={"hidden_size": 24}))
    before = copy.deepcopy(wide.learner.state_dict()["critics"])
    message = start_from(wide.learner, state, "a")
    assert message.startswith(
        "init_from=a: loaded agent; newly initialized: critics (its members.0.layers.0.bias is of shape [16]"
    )
    assert all(torch.equal(before[name], part) for name, part in wide.learner.state_dict()["critics"].items())
    assert "newly initialized: critics (not in the source)" in start_from(wide.learner, {"agent": state["agent"]}, "a")
    other = fresh(config("sac", actor={"hidden_size": 24}))
    before = copy.deepcopy(other.learner.state_dict())
    with pytest.raises(
        UserError, match=r"init_from=a: its actor.*, but in this run it is .*; use the algo and env keys of that run"
    ):
        start_from(other.learner, state, "a")
    for name in ("agent", "critics"):
        assert all(torch.equal(before[name][key], part) for key, part in other.learner.state_dict()[name].items())


def sac_run(path: Path, *overrides: str) -> RunDirectory:
    small = ["algo.hidden_size=8", "algo.learning_starts=32", "algo.total_steps=64", "algo.per_rank_batch_size=4"]
    run = new_run(["exp=sac", "env.id=Pendulum-v1", *small, *overrides, f"run_dir={path}"])
    make_env(run)
    return run


def test_init_from_accepts_run_and_policy_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = sac_run(tmp_path / "source", "seed=0")
    session = RunTrainer(source)
    session.advance(lambda message: None)
    session.save()
    session.close()
    exported = write_policy_folder(source, checkpoint.resolve(source, "latest"), tmp_path / "exported")
    assert {"critics", "target", "agent"} == read_source(exported).parts.keys()
    assert load_policy(exported).predict(np.zeros(3)).shape == (1,)
    for name, at in (("a", source.path), ("b", exported)):
        new = RunTrainer(sac_run(tmp_path / name, "seed=5", f"init_from={at}"))
        mine, theirs = (parameters(each.learner) for each in (new, session))
        for key, part in theirs.items():
            assert key.startswith("temperature") or torch.equal(mine[key], part), key
        assert f"init_from={new.config.init_from}: loaded agent, critics, target" in caplog.text
        new.close()


def test_check_finite_names_component_in_list() -> None:
    state = fresh(config("sac")).learner.state_dict()
    check_finite(state, 8)
    with pytest.raises(RunError, match=r"not finite after 8 policy steps: critics\.deep\.1$"):
        check_finite({**state, "critics": {"deep": [torch.zeros(2), torch.tensor([0.0, torch.nan])]}}, 8)


# Behavior policies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_separate_behavior_policy_collects_same_bits(algo: str, tmp_path: Path) -> None:
    """A copy of the agent, updated after every update and load, gives the same bits as the agent."""

    def make_separate(seed: int = 0) -> Trainer:
        training = fresh(dataclasses.replace(config(algo), seed=seed))
        training.behavior_policy = training.collector.agent = copy.deepcopy(training.learner.agent)
        return training

    assert bits(run(make_separate())) == bits(run(fresh(config(algo))))
    path = run(fresh(config(algo))).save(tmp_path)
    loaded = fresh(config(algo)).load(path)
    assert bits(run(make_separate().load(path))) == bits(run(loaded))


class Explorer(nn.Module):
    """Behavior policy that acts at random with a decreasing rate, and otherwise equal_parts the agent."""

    def __init__(self, agent: q_learning.Agent) -> None:
        super().__init__()
        self.agent = agent
        self.register_buffer("rate", torch.ones(()))

    def initial(self, batch_size: int) -> Any:
        return self.agent.initial(batch_size)

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Any, greedy: bool = False) -> Any:
        carry, action, _ = self.agent.act(carry, obs, is_first, None, True)
        draws = rng.uniform(len(is_first), 2)
        action = torch.where(draws[:, :1] < self.rate, (draws[:, 1:] * 2).long(), action)
        return carry, action, {"explored": self.rate.expand(len(is_first))}

    def to_env(self, action: Tensor) -> Tensor:
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        return self.agent.from_env(action)


Plain = q_learning.Learner


class Curious(Plain):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.explorer = Explorer(self.agent)

    @property
    def behavior_policy(self) -> Explorer:
        return self.explorer

    def components(self) -> dict[str, Stateful]:
        return {**super().components(), "explorer": self.explorer}

    def update(self, batch: Batch, rng: np.random.Generator) -> Any:
        self.explorer.rate = self.explorer.rate * 0.9
        return super().update(batch, rng)


def curious(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    monkeypatch.setattr(q_learning, "Learner", Curious)
    settings = build(q_learning.Config, {"total_steps": 400, "learning_starts": 12, "size": 10}, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def test_behavior_policy_collects_and_agent_is_evaluated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = run(fresh(curious(monkeypatch)))
    assert training.collector.agent is training.learner.behavior_policy is not training.learner.agent
    asked = []
    monkeypatch.setattr(Explorer, "act", lambda *given: asked.append(given))
    evaluated = training.evaluate(4)
    assert not asked  # only the agent acts in an evaluation
    path = training.save(tmp_path)
    served = load_policy(path)
    assert isinstance(served.agent, q_learning.Agent)
    again = fresh(training.config).load(path)
    assert again.learner.explorer.rate == training.learner.explorer.rate < 1
    assert again.evaluate(4)["returns"] == evaluated["returns"]


@pytest.mark.parametrize(
    "check",
    [
        conformance.interrupted_equals_uninterrupted,
        conformance.parts_are_complete,
        conformance.acting_changes_nothing,
        conformance.a_loaded_policy_acts_alike,
        conformance.a_player_elsewhere_acts_alike,
        conformance.compiled_equals_eager,
        conformance.interrupted_ranks_equal_uninterrupted,
    ],
)
def test_algorithm_with_explorer_passes_conformance_check(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check(curious(monkeypatch))


def test_parts_are_complete_detects_missing_explorer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = curious(monkeypatch)
    monkeypatch.setattr(Curious, "components", Plain.components)
    with pytest.raises(AssertionError, match=r"an update changes \['explorer.rate'\], but no component in `components"):
        conformance.parts_are_complete(given)


def test_learner_of_wrong_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("Module", (), {"Config": q_learning.Config, "Agent": q_learning.Agent})
    module.build = staticmethod(lambda context: (object(), object(), None))
    given = curious(monkeypatch)
    monkeypatch.setitem(ALGORITHMS, "q_learning", module)
    refused = r"algo.name=q_learning: object is not a subclass of rlcore.protocols.Learner; derive"
    with pytest.raises(UserError, match=refused):
        fresh(given)


def test_learner_without_required_component_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = curious(monkeypatch)
    monkeypatch.setattr(Curious, "transferable_components", ("agent", "critic"))
    has = "agent, target, first, second, explorer"
    with pytest.raises(UserError, match=rf"components\(\) of its learner must have 'critic', but has only {has}"):
        fresh(given)
    monkeypatch.setattr(Curious, "components", lambda self: {"target": self.target})
    with pytest.raises(
        UserError,
        match=r"algo.name=q_learning: components\(\) of its learner must have 'agent', but has only target",
    ):
        fresh(given)


def test_metrics_of_buffer_and_plan_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    training = fresh(config("sac"))
    monkeypatch.setattr(type(training.buffer), "metrics", lambda self: {"Params/replay_ratio": 0.5})
    metrics = [next(iter(training)).metrics for _ in range(20)]
    assert all(each["Params/replay_ratio"] == 0.5 for each in metrics)
    random = [each["Params/random_actions"] for each in metrics]
    assert random == sorted(random, reverse=True) and {*random} == {1.0, 0.0}
    assert random.count(1.0) * 3 >= SETTINGS["sac"]["learning_starts"] > (random.count(1.0) - 1) * 3
    ppo = fresh(config("ppo"))
    assert not any(name.startswith("Params/") for name in next(iter(ppo)).metrics)


def test_start_from_copies_critics_to_missing_target() -> None:
    state = run(fresh(config("sac"))).learner.state_dict()
    del state["target"]
    other = fresh(dataclasses.replace(config("sac"), seed=1))
    message = start_from(other.learner, state, "a")
    assert message == "init_from=a: loaded agent, critics; target: copy of critics"
    mine = other.learner.state_dict()
    assert mine["target"].keys() == state["critics"].keys()
    assert all(torch.equal(value, state["critics"][name]) for name, value in mine["target"].items())
