"""Checks that compiled functions compute the same as the code, also after updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rlcore.compiled import machine_code, package
from rlcore.compiled.toolchain import missing_requirement
from rlcore.config.groups import RunConfig
from rlcore.conformance.trainings import FEW, check_budget, find_all, fresh, module_tensors, run
from rlcore.errors import CompilationError
from rlcore.functional.tree import name_leaves
from rlcore.optim.step import Step
from rlcore.store.checkpoint import nested_state
from rlcore.train.training import Training
from rlcore.train.warmup import NullRanks
from rlcore.types import Trajectory

ToCompile = tuple[Callable[..., Any], package.TracedFunction]
log = logging.getLogger(__name__)


def compiled_equals_eager(config: RunConfig) -> None:
    """Check that traced graphs compute the same as the code, except for rounding, without building machine code.

    The check traces the functions of a training with one rank, and of a training with two ranks, in which only
    gradients are compiled. In a graph, a value that is not a parameter, buffer or argument is a constant, so a later
    change of the value would have no effect. Therefore, the functions are traced again after a few updates, and the
    graphs must be equal.
    """
    traced: list[ToCompile] = []
    for how in _ways(config):
        _compare(config, traced, how)
    for function, one in traced:
        assert _key(function, [*one.example]) == one.key, (
            f"{one.what} reads a value that an update changes and that is not one of its inputs; the compiled function "
            "would always use the first value: make it a buffer (self.register_buffer) or an argument of the loss"
        )


def machine_code_equals_eager(config: RunConfig) -> None:
    """Check that every function of the algorithm compiles, and that the machine code computes the same as its graph.

    This can take minutes. The machine code is cached like that of trainings, in SHEPHERD_CACHE or `.shepherd/compiled`.
    Without a C++ compiler, the check is skipped with a warning in the log.
    """
    if missing := missing_requirement():
        log.warning("machine code is not checked: %s", missing)
        return
    traced: list[ToCompile] = []
    with _graphs(traced):
        for how in _ways(config):
            run(fresh(config, compiled=True, **how))
    functions = {one.key: one for _, one in traced}
    names = ", ".join(one.what for one in functions.values())
    log.info("compiling %d functions (%s), which can take minutes", len(functions), names)
    try:
        package.build([*functions.values()])
    except CompilationError as error:
        what = functions[error.key].what if error.key else names
        raise AssertionError(f"{what}: {error}") from error


def _ways(config: RunConfig) -> list[dict[str, Any]]:
    """Return keyword arguments of `fresh` for the trainings to compile.

    These are one training with a single rank and, if the learner has a `Step`, one training as rank 0 of two, in which
    other functions are compiled.
    """
    return [{}, {"ranks": NullRanks(size=2)}] if find_all(fresh(config).learner, Step) else [{}]


def _compare(config: RunConfig, traced: list[ToCompile], how: dict[str, Any]) -> None:
    """Compare an eager training with a training that runs traced graphs, after each of a few updates."""
    eager = fresh(config, **how)
    with _graphs(traced):
        compiled = fresh(config, compiled=True, **how)
        learned = 0
        while learned < FEW:
            check_budget(eager)
            rows = [_collect(training) for training in (eager, compiled)]
            for name, one in rows[0].items():
                assert _agree(one, rows[1][name]), f"{name} of a rollout differs if the agent's `act` is compiled"
            learned += bool(eager.update())
            compiled.update()
            actual = module_tensors(compiled.learner)
            for name, one in module_tensors(eager.learner).items():
                assert not isinstance(actual[name], FakeTensor), (
                    f"a compiled function replaces {name}, which is not one of its inputs; "
                    "name its module in the optimizer's `uses` or in Step(..., modules=[...])"
                )
                assert torch.allclose(one, actual[name], rtol=1e-3, atol=1e-5), (
                    f"{name} differs if the update is compiled"
                )
            assert eager.learner.updates == compiled.learner.updates, (
                "the number of updates differs if the update is compiled"
            )
            state = nested_state.encode(eager.learner.state_dict())  # rounding must not accumulate
            compiled.learner.load_state_dict(nested_state.decode(*state))


def _collect(training: Training) -> dict[str, Tensor]:
    """Collect one rollout, and return its actions, extras and carry by name."""
    rows: dict[str, Tensor] = {}

    def extend(steps: Trajectory, last: Trajectory) -> None:
        parts = {"the action": steps.action} | {f"extra {key}": value for key, value in steps.extras.items()}
        parts |= name_leaves(last.carry)
        rows.update({name: value.clone() for name, value in parts.items()})
        type(training.buffer).extend(training.buffer, steps, last)

    with mock.patch.object(training.buffer, "extend", extend):
        training.collect()
    return rows


def _agree(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5)


@contextmanager
def _graphs(traced: list[ToCompile]) -> Iterator[None]:
    """Return a context that runs traced graphs instead of machine code and ignores the cache of machine code.

    Each graph is appended to `traced`.
    """
    trace, functions = machine_code.trace, []

    def note(function: Callable[..., Any], example: list[Tensor]) -> Any:
        functions.append(function)
        function(*example)  # tensors that it creates once and keeps are then the same in every trace
        return trace(function, example)

    def as_graphs(asked: list[package.TracedFunction]) -> list[package.Compiled]:
        (one,) = asked
        traced.append((functions[-1], one))
        return [lambda inputs: list(one.graph(*inputs))]

    def refuse(what: str, began_with: str, began: bool, error: Exception, else_do: str = "") -> None:
        if isinstance(error, CompilationError):
            raise AssertionError(f"{what} cannot be compiled: {error}") from error
        plain(what, began_with, began, error, else_do)

    plain = machine_code.leave_as_written
    in_place = mock.patch.multiple(
        machine_code, trace=note, build=as_graphs, leave_as_written=refuse, _find_known=lambda *_: None
    )
    with in_place, mock.patch("rlcore.train.training.warm_up", lambda *_: None):
        yield


def _key(function: Callable[..., Any], example: list[Tensor]) -> str:
    return package.content_key(machine_code.trace(function, example), example)
