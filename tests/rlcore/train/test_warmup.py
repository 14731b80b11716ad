"""Warm-up: before the first build, another learner runs one iteration in random environments."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import machine_code, package
from rlcore.compiled.package import Compiled, TracedFunction
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.errors import CompilationError, RunError
from rlcore.store.checkpoint import nested_state
from rlcore.store.compare import tensor_digests
from rlcore.train.fabric import FabricRanks
from rlcore.train.loop import TrainingLoop
from rlcore.train.trainer import Trainer
from rlcore.train.warmup import NullRanks, RandomEnvs, warm_up
from tests.graphs import run_graphs
from tests.probes import q_learning
from tests.soaking import always, heavy

pytestmark = heavy


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return the keys of each build, in order."""
    asked: list[list[str]] = []

    def build_graphs(functions: list[TracedFunction]) -> list[Compiled]:
        asked.append([each.key for each in functions])
        return run_graphs(functions)

    monkeypatch.setattr(machine_code, "build", build_graphs)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    return asked


@pytest.fixture(autouse=True)
def off_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)


def training(algo: str, env_id: str = "CartPole-v1", vectorization: str = "single", **settings: Any) -> Trainer:
    own = {"total_steps": 10_000} | settings
    env = EnvConfig(id=env_id, num_envs=3, max_episode_steps=12, vectorization=vectorization)
    return Trainer(RunConfig(algo=build(ALGORITHMS[algo].Config, own, "algo."), env=env, seed=0), compiled=True)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "CartPole-v1", {"rollout_steps": 20, "dense_units": 8}),
    ("ppo", "Pendulum-v1", {"rollout_steps": 20, "dense_units": 8, "normalize_obs": True, "normalize_reward": True}),
    ("a2c", "CartPole-v1", {"rollout_steps": 5, "dense_units": 8}),
    ("q_learning", "CartPole-v1", {"learning_starts": 48}),
    ("sac", "Pendulum-v1", {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}),
    ("crossq", "Pendulum-v1", {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}),  # two kinds of step
]


# The steps of CrossQ take ten seconds to trace.
@pytest.mark.parametrize(
    ("algo", "env_id", "settings"), [pytest.param(*case, marks=() if case[0] == "crossq" else always) for case in CASES]
)
def test_warm_up_finds_all_functions_and_keeps_bits(
    algo: str, env_id: str, settings: dict[str, Any], builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for rehearsed in (True, False):
        with monkeypatch.context() as patch:
            if not rehearsed:
                patch.setattr("rlcore.train.trainer.warm_up", lambda *_: None)
            one = training(algo, env_id, **settings)
            for _ in range(6):
                one.collect()
                one.update()
            assert one.learner.updates and one.collector.compiled
            states.append(tensor_digests(one.state_dict()))
    together, *singly = builds
    assert len(set(together)) >= 2
    assert sorted(key for keys in singly for key in keys) == sorted(2 * together)
    assert states[0] == states[1]


def test_warm_up_supports_vector_that_writes_in_place(builds: list[list[str]]) -> None:
    one = training("ppo", vectorization="native", rollout_steps=8, dense_units=8)
    one.collect()
    one.update()
    assert sorted(builds[0]) == sorted(key for keys in builds[1:] for key in keys)


@pytest.mark.parametrize("error", [ZeroDivisionError(), RunError("no environment gives such observations")])
def test_failed_warm_up_only_costs_time(
    error: Exception, builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: RandomEnvs, action: Any) -> Any:
        raise error

    monkeypatch.setattr(RandomEnvs, "step", fails)
    one = training("ppo", rollout_steps=20, dense_units=8)
    one.collect()
    one.update()
    assert [len(keys) for keys in builds] == [
        1,
        1,
        1,
    ]  # acting in the warm-up, then both functions: these builds are not cached
    assert not machine_code.in_warm_up()


def test_warm_up_ends_without_update(builds: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.train.warmup.LIMIT", 0.3)
    one = training("q_learning", total_steps=10**7, learning_starts=10**6)
    began = time.monotonic()
    warm_up(one.context, one.envs)
    assert time.monotonic() - began < 60  # an update would take far longer


@pytest.mark.parametrize(("algo", "kinds"), [("sac", 1), ("crossq", 2)])
def test_warm_up_leaves_long_update_early(
    algo: str, kinds: int, builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {
        "learning_starts": 6,
        "hidden_size": 8,
        "per_rank_batch_size": 8,
        "per_rank_pretrain_steps": 300,
    }
    one = training(algo, "Pendulum-v1", **small)
    loops: list[TrainingLoop] = []
    monkeypatch.setattr("rlcore.train.warmup.LIMIT", 1e9)
    monkeypatch.setattr(
        "rlcore.train.warmup.TrainingLoop", lambda *parts: loops.append(TrainingLoop(*parts)) or loops[0]
    )
    warm_up(one.context, one.envs)
    assert 0 < loops[0].learner.updates < 10
    assert [len(keys) for keys in builds] == [1 + kinds]  # including acting, which begins after the random steps


def test_package_check_uses_distinct_observations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[TracedFunction] = []
    monkeypatch.setattr(machine_code, "build", lambda functions: seen.extend(functions) or run_graphs(functions))
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    one = training("ppo", rollout_steps=20, dense_units=8)
    one.collect()
    acting = seen[0]
    (obs,) = [value for value in acting.example if value.shape == (3, 4) and value.dtype == torch.float32]
    assert acting.what == "policy inference" and len(obs.unique()) == 12
    blind = [torch.zeros_like(value) if value is obs else value for value in acting.example]
    with pytest.raises(CompilationError, match="wrong by"):
        package.check(lambda inputs: list(acting.graph(*blind)), acting)


def test_random_envs_return_tensors_on_device() -> None:
    spec = training("q_learning").envs.spec
    arrival = RandomEnvs(spec, 3, torch.device("cpu")).reset()
    host = RandomEnvs(spec, 3, None).reset()
    for key, rows in host.obs.items():
        tensor = arrival.obs[key]
        assert isinstance(tensor, torch.Tensor) and tensor.numpy().dtype == rows.dtype == spec.obs[key].dtype
        assert tensor.shape == rows.shape == (3, *spec.obs[key].shape)


WRONG = "the gradient step is not compiled; training continues with eager code: the compiled code is wrong by"


CHECK = package.check


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Make the machine code of gradient steps wrong by 1 %; return the compiled keys in order."""
    asked: list[str] = []
    graphs: dict[bytes, TracedFunction] = {}

    def compile_programs(work: Path, programs: Sequence[tuple[Any, Sequence[torch.Tensor]]]) -> list[bytes]:
        made = [TracedFunction("", *program) for program in programs]
        asked.extend(each.key for each in made)
        graphs.update({each.key.encode(): each for each in made})
        return [each.key.encode() for each in made]

    def check(run: Compiled, traced: TracedFunction) -> None:
        off = 1.01 if traced.what == "the gradient step" else 1.0
        CHECK(lambda given: [off * made for made in run(given)], traced)

    monkeypatch.setattr(package, "compile_programs", compile_programs)
    for place in (package, machine_code):
        monkeypatch.setattr(place, "load", lambda content: run_graphs([graphs[content]])[0])
    monkeypatch.setattr(package, "check", check)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    return asked


def iterate(one: Trainer, count: int) -> Trainer:
    for _ in range(count):
        one.collect()
        one.update()
    return one


def test_warm_up_warns_once_and_training_stays_eager(wrong: list[str], caplog: pytest.LogCaptureFixture) -> None:
    one = training("sac", "Pendulum-v1", learning_starts=30, hidden_size=8, per_rank_batch_size=8)
    with caplog.at_level("WARNING"):
        one.collect()
    assert one.policy_steps < one.plan.random_steps and caplog.text.count(WRONG) == 1
    one.update()
    iterate(one, 12)
    assert one.learner.updates and one.collector.compiled and not one.learner.step.compiled
    assert caplog.text.count(WRONG) == 1 and len(wrong) == 2  # acting and the step, once
    plain = Trainer(one.config, compiled=False)
    iterate(plain, 13)
    for (name, found), wanted in zip(
        one.learner.agent.named_parameters(), plain.learner.agent.parameters(), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6, msg=name)


def test_resume_keeps_fallback_to_eager(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the compiler works again: all bits are those of the uninterrupted run."""
    small: dict[str, Any] = {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}
    one = iterate(training("sac", "Pendulum-v1", **small), 6)
    state = nested_state.encode(one.state_dict())
    whole = tensor_digests(iterate(one, 4).state_dict())
    monkeypatch.setattr(package, "check", lambda *_: None)
    again = training("sac", "Pendulum-v1", **small)
    again.load_state_dict(nested_state.decode(*state))
    assert tensor_digests(iterate(again, 4).state_dict()) == whole and not again.learner.step.compiled


def test_resume_of_compiled_run_does_not_fall_back(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}
    with monkeypatch.context() as patch:
        patch.setattr(package, "check", lambda *_: None)
        state = nested_state.encode(iterate(training("sac", "Pendulum-v1", **small), 6).state_dict())
    monkeypatch.setenv("SHEPHERD_CACHE", str(Path(os.environ["SHEPHERD_CACHE"]) / "another"))
    again = training("sac", "Pendulum-v1", **small)
    again.load_state_dict(nested_state.decode(*state))
    with pytest.raises(
        RunError, match="the run began with compiled gradient steps, but the gradient step cannot be compiled"
    ):
        iterate(again, 1)


def test_warm_up_builds_other_functions_if_one_fails(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The C++ compiler does not report which function failed."""
    makes = package.compile_programs

    def fails(work: Path, programs: Sequence[tuple[Any, Sequence[torch.Tensor]]]) -> list[bytes]:
        if any(len(example) > 20 for _, example in programs):
            raise CompilationError("compilation failed (error: no such file); check the C++ compiler")
        return makes(work, programs)

    monkeypatch.setattr(package, "compile_programs", fails)
    one = training("sac", "Pendulum-v1", learning_starts=30, hidden_size=8, per_rank_batch_size=8)
    with caplog.at_level("WARNING"):
        iterate(one, 13)
    assert one.learner.updates and one.collector.compiled and not one.learner.step.compiled and len(wrong) == 1
    assert [each.getMessage().partition(" (")[0] for each in caplog.records if "not compiled" in each.getMessage()] == [
        "the gradient step is not compiled; training continues with eager code: compilation failed"
    ]


@always
@pytest.mark.parametrize("rehearsed", [True, False])
def test_trace_refuses_sum_over_ranks(rehearsed: bool) -> None:
    """Otherwise training would use the machine code of the warm-up, whose ranks exchange nothing."""
    fabric: Any = SimpleNamespace(global_rank=0, world_size=2, device=torch.device("cpu"))
    ranks = NullRanks(size=fabric.world_size) if rehearsed else FabricRanks(fabric)
    with pytest.raises(RuntimeError, match="a sum over ranks cannot be compiled"):
        machine_code.trace(lambda x: (ranks.sum(x),), [torch.ones(2)])
