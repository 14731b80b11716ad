"""Whether a run is compiled: by its config and the machine."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.compiled import toolchain
from rlcore.compiled.when_to_compile import AHEAD_OF_TIME, EAGER, WORTHWHILE, decide
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError
from rlcore.store.run_config import build_config
from tests.runs import values

# Rollouts of 64 rows of 2 environments in 4 minibatches, 2 epochs: 8 gradient steps of 1.1 ms and 32 calls of 0.1 ms.
LONG = math.ceil(WORTHWHILE / (8 * 1.1e-3 + 32 * 1e-4)) * 64


def config(total_steps: int = LONG, **dotted: Any) -> RunConfig:
    return build_config(values("CartPole-v1", total_steps, **dotted))


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")  # whatever is there


def test_auto_compiles_runs_that_are_long_enough() -> None:
    assert decide(config(), None) == AHEAD_OF_TIME
    assert decide(config(LONG - 64), None) == EAGER


def test_auto_stays_what_it_was() -> None:
    for before in (EAGER, AHEAD_OF_TIME):
        for total_steps in (64, LONG):
            assert decide(config(total_steps), {"learning": {"compile": before}}) == before


def test_true_and_false_are_obeyed() -> None:
    assert decide(config(64, algo__compile=True), None) == AHEAD_OF_TIME
    assert decide(config(algo__compile=False), None) == EAGER


UNSUPPORTED: list[tuple[str, Any]] = [
    ("fabric.precision", "16-mixed"),
    ("fabric.accelerator", "cuda"),
]


@pytest.mark.parametrize(("key", "value"), UNSUPPORTED)
def test_what_cannot_be_compiled_is_refused_by_name_or_left_eager_by_auto(key: str, value: Any) -> None:
    changes = {key.replace(".", "__"): value}
    shown = str(value).lower()
    with pytest.raises(UserError, match=rf"^algo.compile=true: .*{key}={shown}"):
        config(algo__compile=True, **changes)
    assert decide(config(**changes), None) == EAGER


def test_without_a_compiler_auto_is_eager_and_true_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert decide(config(), None) == EAGER
    with pytest.raises(UserError, match=r"^algo.compile=true: no C\+\+ compiler .* apt install g\+\+"):
        decide(config(algo__compile=True), None)
    with pytest.raises(UserError, match=r"began with a compiled step, but no C\+\+ compiler"):
        decide(config(), {"learning": {"compile": AHEAD_OF_TIME}})


def test_torch_in_a_folder_with_a_space_cannot_be_compiled_against(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SimpleNamespace(origin="/home/my user/torch/__init__.py")
    monkeypatch.setattr(toolchain, "find_spec", lambda name: elsewhere)
    assert decide(config(), None) == EAGER
    with pytest.raises(UserError, match=r"^algo.compile=true: .* below /home/my user/torch; install in a plain path"):
        decide(config(algo__compile=True), None)
