"""PPO's compiled minibatch step equals the eager one; its cached packages are valid or rebuilt.

Building a package takes 15 s, so only one is built here. The other cases run the graph that would be compiled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore import streams
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.compiled import compiler, machine_code, package
from rlcore.config.groups import DistributionConfig, MetricConfig
from rlcore.errors import CompilationError, RunError
from rlcore.functional.noise import Noise
from rlcore.nn.network_keys import ActorConfig, MLPConfig
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.run_config import build_config
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.train.fabric import FabricRanks
from rlcore.train.metrics import MetricsWindow
from rlcore.types import Batch, Context, Trajectory
from tests.graphs import run_graphs
from tests.learning.assembly import compiler_of, fabric
from tests.runs import COMPILED, values
from tests.soaking import always, heavy

pytestmark = heavy

LENGTH, ENVS = 24, 3
BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
ACTIONS = {
    "discrete": ActionSpec("Discrete", (), "int64", nvec=(2,), start=(0,)),
    "multi_discrete": ActionSpec("MultiDiscrete", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "normal": BOX,
    "tanh_normal": BOX,
}


def learner(kind: str, **changes: Any) -> ppo.Learner:
    return build_learner(kind, False, **changes)


def build_learner(kind: str, compiled: bool, **changes: Any) -> ppo.Learner:
    # 66 of the 72 rows have weight 1: rows of weight 0 fill up the last minibatch of an epoch.
    run = build_config(values("CartPole-v1", 1000, **COMPILED))
    distribution = DistributionConfig(type="tanh_normal" if kind == "tanh_normal" else "auto")
    run = dataclasses.replace(run, algo=dataclasses.replace(run.algo, **changes), seed=0, distribution=distribution)
    spec = EnvSpec("probe", {"state": ArraySpec((4,), "float32")}, ACTIONS[kind])
    compiler = compiler_of(run, spec, ENVS) if compiled else None
    return ppo.build(Context(run, spec, fabric(), FabricRanks(fabric()), ENVS, compiler))[0]


def compiled(kind: str, **changes: Any) -> ppo.Learner:
    """A learner whose step is compiled, by an update whose effects are undone."""
    one = build_learner(kind, True, **changes)
    state = nested_state.encode(one.state_dict())
    one.update(rollout(one.agent), streams.generator(0, "minibatch"))
    one.load_state_dict(nested_state.decode(*state))
    return one


def rollout(agent: ppo.Agent, policy_steps: int = 0) -> Batch:
    """A rollout with noise as observations and with episode ends, so 6 rows only reset."""
    rng = np.random.default_rng(1)
    obs = torch.from_numpy(rng.standard_normal((LENGTH + 1, ENVS, 4), dtype=np.float32))
    noise = Noise(1, "policy")
    steps_taken = [agent.act((), {"state": obs[t]}, torch.zeros(ENVS), noise) for t in range(LENGTH)]
    ended, none = torch.zeros(2, LENGTH + 1, ENVS, dtype=torch.bool)
    ended[[3, 10, 17]] = torch.tensor([True, False, True])
    action = torch.stack([action.detach() for _, action, _ in steps_taken])
    extras = {key: torch.stack([e[key].detach() for _, _, e in steps_taken]) for key in ("logprob", "value")}
    reward = 10 * obs[..., 0]  # advantages large enough for ratios beyond every clip
    steps = Trajectory({"state": obs[:-1]}, action, reward[:-1], ended[:-1], none[:-1], none[:-1], extras)
    return Batch(
        steps, Trajectory({"state": obs[-1]}, action[-1], reward[-1], ended[-1], none[-1], none[-1]), policy_steps
    )


def trained(one: ppo.Learner, updates: int = 2) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Weights and metrics after updates at policy steps 0, 400, …, whose annealed coefficients differ."""
    rng, metrics = streams.generator(0, "minibatch"), {}
    for update in range(updates):
        given = one.update(rollout(one.agent, 400 * update), rng)
        metrics = {name: float(value) for name, value in given.items()}
    return {name: p.detach().clone() for name, p in one.agent.named_parameters()}, metrics


def assert_agree(one: ppo.Learner, other: ppo.Learner) -> None:
    """Two updates give both learners the same weights and metrics up to rounding."""
    (weights, metrics), (expected, logged) = trained(one), trained(other)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert metrics == pytest.approx(logged, rel=1e-3, abs=1e-5)
    assert one.updates == other.updates


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "build", run_graphs)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with the built step of the discrete case only, copied from the folder that all tests share."""
    shared, folder = Path(os.environ["TESTS_SHARED"], "compiled"), tmp_path_factory.mktemp("compiled")
    loaded, load = [], package.load
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as in a run, because the runs of tests/kills use the same package
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEPHERD_CACHE", str(shared))
        for place in (package, machine_code):
            patch.setattr(place, "load", lambda content: loaded.append(content) or load(content))
        compiled("discrete")
    (kept,) = shared.glob(f"*.{hashlib.sha256(loaded[0]).hexdigest()}.pt2")
    entries = (entry for entry in shared.glob("*.json") if kept.name.partition(".")[0] in entry.read_text())
    for file in (kept, *entries):
        shutil.copy(file, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEPHERD_CACHE", str(folder))
        yield folder
    torch.set_float32_matmul_precision(precision)


def packages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pt2"))


# The same numbers -----------------------------------------------------------------------------------------------------


@always
def test_compiled_step_matches_eager_without_rebuild(cache: Path) -> None:
    before = packages(cache)
    assert_agree(compiled("discrete"), learner("discrete"))
    assert packages(cache) == before and len(before) == 1


def test_compiled_step_is_deterministic(cache: Path) -> None:
    first, second = (compiled("discrete") for _ in range(2))
    trained(first)
    trained(second)
    assert nested_state.encode(first.state_dict()) == nested_state.encode(second.state_dict())


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", ACTIONS)
def test_graph_matches_eager_step_per_action_space(kind: str) -> None:
    assert_agree(compiled(kind), learner(kind))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.1)},
        {"optimizer": OptimizerConfig(lr=0.01, weight_decay=0.1, betas=(0.5, 0.9), eps=1e-8)},
        {"optimizer": OptimizerConfig(lr=0.01, betas=None, eps=None, amsgrad=True)},
        {"optimizer": OptimizerConfig(name="rmsprop", lr=0.01, centered=True, momentum=0.9)},
        {"optimizer": OptimizerConfig(name="rmsprop_tf", lr=0.01, momentum=0.9)},
        {"optimizer": OptimizerConfig(name="sgd", lr=0.01, momentum=0.9, nesterov=True)},
        {"accumulate_minibatches": 2},
        {"max_grad_norm": 0.0, "dual_clip": None, "clip_vloss": False},
        {"loss_reduction": "sum", "normalize_advantages": False},
        {"critic": MLPConfig(dense_units=16, layer_norm=True), "normalize_obs": True, "normalize_reward": True},
        {"actor": ActorConfig(dense_units=16, state_dependent_std=False, log_std_init=-1.0)},
        {"per_rank_batch_size": 1000},
        {"target_kl": 1e-9},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_graph_matches_eager_step_per_setting(changes: dict[str, Any]) -> None:
    assert_agree(compiled("normal", **changes), learner("normal", **changes))


@pytest.mark.usefixtures("uncompiled")
def test_compiled_step_beyond_target_kl_is_skipped() -> None:
    one = compiled("normal", target_kl=1e-9)
    trained(one, updates=1)
    assert one.updates == 1  # the first has the behavior policy, the second is one step away from it
    assert one.optimizer.state_dict()["count"] == 1


@pytest.mark.usefixtures("uncompiled")
def test_compiled_non_finite_loss_stops_run() -> None:
    one = compiled("normal")
    batch = rollout(one.agent)
    batch.steps.reward[5, 1] = float("nan")
    window = MetricsWindow(MetricConfig())
    window.add([one.update(batch, streams.generator(0, "minibatch"))], [])
    with pytest.raises(RunError, match="not finite after 8 updates and 72 policy steps: .*Info/grad_norm"):
        window.close(72, one.updates)


# State ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
def test_compiled_state_uses_names_of_eager_agent() -> None:
    state, plain = (one.state_dict()["agent"] for one in (compiled("normal"), learner("normal")))
    assert list(state) == list(plain)
    assert nested_state.encode(state) == nested_state.encode(plain)


@always
@pytest.mark.usefixtures("uncompiled")
def test_compiled_learner_resumes_to_same_state() -> None:
    whole, first, second = (compiled("normal") for _ in range(3))
    rng = streams.generator(0, "minibatch")
    whole.update(rollout(whole.agent), rng)
    whole.update(rollout(whole.agent, 400), rng)
    rng = streams.generator(0, "minibatch")
    first.update(rollout(first.agent), rng)
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    second.update(rollout(second.agent, 400), rng)
    assert nested_state.encode(second.state_dict()) == nested_state.encode(whole.state_dict())


# The cache ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def builds(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of calls of a fake compiler that returns the valid package, with a copy of the cache."""
    (path,) = packages(cache)
    good, calls = path.read_bytes(), []

    def compiling(work: Path, places: list[Path]) -> None:
        (place,) = places
        assert (place / "program.pt2").stat().st_size
        assert " " not in str(place)
        calls.append(time.monotonic())
        time.sleep(0.3)
        (place / "package.pt2").write_bytes(good)

    monkeypatch.setattr(compiler, "run_compiler", compiling)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    (tmp_path / path.name).write_bytes(good)
    return calls


def test_compile_reuses_valid_package(builds: list[float]) -> None:
    compiled("discrete")
    assert not builds


@pytest.mark.parametrize("damage", ["flipped", "torn", "empty"])
def test_compile_rebuilds_damaged_package(
    damage: str, builds: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = packages(tmp_path)
    good = path.read_bytes()
    middle = len(good) // 2
    wrong = {"flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], "torn": good[:middle]}
    path.write_bytes(wrong.get(damage, b""))
    compiled("discrete")
    assert len(builds) == 1
    assert f"{path} is damaged" in caplog.text
    assert path.read_bytes() == good


def test_compile_rewrites_damaged_note(builds: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = vars(compiled("discrete").step.execution.code)["_outputs"]
    (note,) = tmp_path.glob("*.json")
    good = note.read_bytes()
    note.write_bytes(good.replace(b"policy_loss", b"pOlicy_loss"))  # one bit, still valid JSON
    assert note.read_bytes() != good
    assert vars(compiled("discrete").step.execution.code)["_outputs"] == names and "Loss/policy_loss" in names[0][0]
    assert f"{note} is damaged" in caplog.text and note.read_bytes() == good and not builds


def test_compile_traces_only_changed_configurations(builds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled("discrete")
    monkeypatch.setattr(machine_code, "trace", traced_again)
    compiled("discrete")
    for changes in ({"ent_coef": 0.5}, {"clip_vloss": False}, {"per_rank_batch_size": 19}):
        with pytest.raises(TracedAgainError):
            compiled("discrete", **changes)
    for place, name, value in (
        (machine_code, "CODE", "other code"),
        (torch, "get_num_threads", lambda: 7),
    ):
        with monkeypatch.context() as patch, pytest.raises(TracedAgainError):
            patch.setattr(place, name, value)
            compiled("discrete")
    assert not builds


class TracedAgainError(BaseException):
    """Not an `Exception`, after which the learner would continue with eager code."""


def traced_again(*_: Any) -> Any:
    raise TracedAgainError


def traced() -> package.TracedFunction:
    """The step of the discrete case."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_code, "build", lambda functions: seen.extend(functions) or run_graphs(functions))
        patch.setattr(machine_code, "_find_known", lambda *_: None)
        compiled("discrete")
    return seen[0]


def test_package_build_is_shared_by_concurrent_builders(builds: list[float], tmp_path: Path) -> None:
    packages(tmp_path)[0].unlink()
    step, steps = traced(), []
    threads = [threading.Thread(target=lambda: steps.extend(package.build([step]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    first, second = (run(list(step.example)) for run in steps)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_compile_works_with_space_in_cache_path(
    builds: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path / "a folder"))
    compiled("discrete")
    compiled("discrete")
    assert len(builds) == 1 and len(packages(tmp_path / "a folder")) == 1


def test_compile_removes_files_of_killed_builder(builds: list[float], tmp_path: Path) -> None:
    (path,) = packages(tmp_path)
    leftover = tmp_path / f"{path.name.partition('.')[0]}.building-x1"
    (leftover / "inductor").mkdir(parents=True)
    path.unlink()
    compiled("discrete")
    assert {p.suffix for p in tmp_path.iterdir()} == {".lock", ".pt2", ".json"}


def test_compile_failed_build_falls_back_to_eager(
    builds: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No files are left in the cache."""
    packages(tmp_path)[0].unlink()
    load = package.load
    monkeypatch.setattr(package, "load", lambda content: lambda given: [1.1 * x for x in load(content)(given)])
    with caplog.at_level("WARNING"):
        assert_agree(compiled("discrete"), learner("discrete"))
    assert "the gradient step is not compiled; training continues with eager code: the compiled code is" in caplog.text
    assert not packages(tmp_path) and not list(tmp_path.glob("*.building-*"))


def test_run_compiler_failure_raises_compilation_error(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match=r"compilation failed \(.*program.pt2.*\); check the C\+\+ compiler"):
        compiler.run_compiler(tmp_path, [tmp_path])  # there is no program.pt2


def test_compile_warns_about_unwritable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path / "file"))
    with caplog.at_level("WARNING"):
        compiled("discrete")
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "cannot be stored there" in warning and "set SHEPHERD_CACHE to another folder" in warning


def test_content_key_depends_on_config_machine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(factor: float = 2.0, constant: float = 1.0, shape: int = 3) -> str:
        def function(x: torch.Tensor) -> tuple[torch.Tensor]:
            return (factor * x + torch.tensor([constant]),)

        example = [torch.arange(float(shape))]
        return package.content_key(machine_code.trace(function, example), example)

    keys = [key(), key(factor=2.0000002), key(constant=1.0000002), key(shape=4)]
    assert key() == keys[0]
    for place, name, value in (
        (torch, "__version__", "9.9"),
        (torch, "get_num_threads", lambda: 7),
        (package, "processor", lambda: "another"),
        (package, "compiler_version", lambda path: "g++ 99"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            keys.append(key())
    assert len(set(keys)) == len(keys)
