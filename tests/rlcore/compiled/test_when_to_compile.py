"""Decision whether a run is compiled, from its config and the machine."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.compiled import when_to_compile
from rlcore.compiled.when_to_compile import AHEAD_OF_TIME, EAGER, RECORDED, Arithmetic, decide
from rlcore.config.groups import FabricConfig
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.run_config import build_config
from rlcore.train import arithmetic
from tests.learning.assembly import assemble
from tests.runs import values

LONG = 10**6


def config(total_steps: int = LONG, **dotted: Any) -> RunConfig:
    return build_config(values("CartPole-v1", total_steps, **dotted))


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")  # always found, on any machine


def count(steps: int = 10**6) -> Arithmetic:
    return Arithmetic(steps, operations=220, flops=3.4e6, calls=0)


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        # 40,000 times 1.1 ms is just the required time
        (Arithmetic(40_000, 220, 3.4e6, 0), AHEAD_OF_TIME, "compiling saves about 44 s of this run"),
        (
            Arithmetic(39_900, 220, 3.4e6, 0),
            EAGER,
            "compiling takes about 22 s once and would save about 43 s of this run; it is automatic if it saves 44 s",
        ),
        (
            Arithmetic(39_900, 220, 3.4e6, 10_000),
            AHEAD_OF_TIME,
            "compiling saves about 44 s of this run",
        ),  # calls save another second
        # matrix products take a second each
        (
            Arithmetic(10**7, 250, 1e11, 10**7),
            EAGER,
            "compiling takes about 22 s once and would save about 0 s of this run; it is automatic if it saves 44 s",
        ),
        (None, EAGER, "the time that compiling would save could not be computed"),
    ],
)
def test_decide_auto_depends_on_saved_seconds(
    found: Arithmetic | None, expected: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert decide(config(), None, lambda: found) == expected
    (line,) = (record.getMessage() for record in caplog.records if not hasattr(record, "detail"))
    assert line == f"{'not ' if expected == EAGER else ''}compiled: {reason} (algo.compile=auto)"
    assert (str(found) in caplog.messages) == (found is not None)  # a detail, for run.log


@pytest.mark.parametrize(
    ("settings", "before", "line"),
    [
        ({"algo__compile": False}, None, "not compiled: algo.compile=false"),
        ({"algo__compile": True}, None, "compiled: algo.compile=true"),
        ({"fabric__precision": "16-mixed"}, None, "not compiled: not supported with fabric.precision=16-mixed; use"),
        (
            {"total_steps": 1_000},
            None,
            "not compiled: the run is too short for compiling to save time (algo.compile=auto)",
        ),
        ({"dry_run": True}, None, "not compiled: compiling would not save a dry run any time (algo.compile=auto)"),
        ({}, AHEAD_OF_TIME, "compiled: as when this run began"),
        ({}, EAGER, "not compiled: as when this run began"),
        ({"fabric__accelerator": "cuda"}, RECORDED, "recorded as a CUDA graph: as when this run began"),
    ],
)
def test_decide_logs_its_reason(
    settings: dict[str, Any], before: str | None, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        decide(config(**settings), before and {"learning": {"compile": before}}, count)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(line)


@pytest.mark.parametrize("short", [config(1_000), config(dry_run=True)], ids=["few steps", "dry run"])
def test_decide_counts_nothing_for_short_run(short: RunConfig) -> None:
    def never() -> Arithmetic:
        raise AssertionError

    assert decide(short, None, never) == EAGER


LARGE = {"dense_units": 512, "mlp_layers": 3}
WIDE = {"actor": LARGE, "critic": LARGE, "per_rank_batch_size": 2048, "update_epochs": 1, "rollout_steps": 512}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "algo", "expected"),
    [
        ("CartPole-v1", {"name": "ppo", "total_steps": 10**6}, AHEAD_OF_TIME),
        ("CartPole-v1", {"name": "ppo", "total_steps": 10**6, "target_kl": 0.02}, AHEAD_OF_TIME),
        ("Pendulum-v1", {"name": "sac", "total_steps": 10**5}, AHEAD_OF_TIME),
        ("CartPole-v1", {"name": "ppo", "total_steps": 10**8, **WIDE}, EAGER),
        ("CartPole-v1", {"name": "ppo", "total_steps": 5_000}, EAGER),
    ],
    ids=["small", "with a step that is not taken", "sac", "of large matrices", "short"],
)
def test_decide_auto_in_typical_runs(env_id: str, algo: dict[str, Any], expected: str) -> None:
    one = assemble(env_id, algo, num_envs=4, max_episode_steps=12)
    assert decide(one.config, None, lambda: arithmetic.count(one.config, one.envs.spec)) == expected


def test_decide_auto_keeps_choice_of_run() -> None:
    for before in (EAGER, AHEAD_OF_TIME):
        for total_steps in (64, LONG):
            assert decide(config(total_steps), {"learning": {"compile": before}}, count) == before


def test_decide_obeys_true_and_false() -> None:
    assert decide(config(64, algo__compile=True), None, count) == AHEAD_OF_TIME
    assert decide(config(algo__compile=False), None, count) == EAGER


UNSUPPORTED: list[tuple[str, Any]] = [
    ("fabric.precision", "16-mixed"),
]


@pytest.mark.parametrize(("key", "value"), UNSUPPORTED)
def test_unsupported_config_is_refused_or_left_eager(key: str, value: Any) -> None:
    changes = {key.replace(".", "__"): value}
    shown = str(value).lower()
    with pytest.raises(UserError, match=rf"^algo.compile=true: .*{key}={shown}"):
        config(algo__compile=True, **changes)
    assert decide(config(**changes), None, count) == EAGER


def test_decide_on_gpu_records_and_keeps_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")  # no compiler is needed
    gpu: dict[str, Any] = {"fabric__accelerator": "cuda"}
    assert decide(config(64, **gpu), None, count) == EAGER
    assert decide(config(**gpu), None, lambda: count(39_900)) == EAGER
    assert decide(config(**gpu), None, count) == RECORDED
    assert decide(config(algo__compile=True, **gpu), None, count) == RECORDED
    for before in (EAGER, RECORDED):
        assert decide(config(**gpu), {"learning": {"compile": before}}, count) == before
    with pytest.raises(UserError, match="began with compiled gradient steps, .* fabric.accelerator=cuda; use cpu"):
        decide(config(**gpu), {"learning": {"compile": AHEAD_OF_TIME}}, count)
    with pytest.raises(
        UserError, match="began with gradient steps recorded as a CUDA graph, .* fabric.accelerator=cpu; use cuda"
    ):
        decide(config(), {"learning": {"compile": RECORDED}}, count)
    assert decide(config(fabric__devices=2, **gpu), None, count) == EAGER


@pytest.mark.slow
def test_arithmetic_on_gpu_excludes_acting() -> None:
    one = assemble("CartPole-v1", {"name": "ppo", "total_steps": 10**6}, num_envs=4, max_episode_steps=12)
    cpu, gpu = (
        arithmetic.count(replace(one.config, fabric=FabricConfig(accelerator=where)), one.envs.spec)
        for where in ("cpu", "cuda")
    )
    assert cpu is not None and gpu is not None
    assert (gpu.steps, gpu.operations, gpu.flops) == (cpu.steps, cpu.operations, cpu.flops)
    assert gpu.calls == 0 < cpu.calls and gpu.rate > 100 * cpu.rate


def test_count_finds_optimizer_inside_other_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin may keep an optimizer in an object of its own class, which is a component."""
    one = assemble("CartPole-v1", {"name": "ppo", "total_steps": 10**6}, num_envs=4, max_episode_steps=12)
    expected = arithmetic.count(one.config, one.envs.spec)
    listed = ppo.Learner.components

    def nested(self: Any) -> dict[str, Any]:
        return {name: part for name, part in listed(self).items() if name not in ("optimizer", "step")}

    monkeypatch.setattr(ppo.Learner, "components", nested)
    assert expected is not None and arithmetic.count(one.config, one.envs.spec) == expected


def test_decide_without_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert decide(config(), None, count) == EAGER
    with pytest.raises(UserError, match=r"^algo.compile=true: this machine has no C\+\+ compiler .* apt install g\+\+"):
        decide(config(algo__compile=True), None, count)
    with pytest.raises(UserError, match=r"began with compiled gradient steps, but this machine has no C\+\+ compiler"):
        decide(config(), {"learning": {"compile": AHEAD_OF_TIME}}, count)


def test_decide_refuses_torch_path_with_space(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SimpleNamespace(origin="/home/my user/torch/__init__.py")
    monkeypatch.setattr(when_to_compile, "find_spec", lambda name: elsewhere)
    assert decide(config(), None, count) == EAGER
    with pytest.raises(
        UserError,
        match=r"^algo.compile=true: .* in /home/my user/torch, because the path contains special characters; install",
    ):
        decide(config(algo__compile=True), None, count)
