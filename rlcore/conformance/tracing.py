"""Conformance checks that compiled functions compute the same as eager code, also after updates."""

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
from rlcore.compiled.when_to_compile import missing_requirement
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import FEW, check_budget, fresh, module_tensors, run
from rlcore.errors import CompilationError
from rlcore.functional.tree import name_leaves
from rlcore.optim.step import Step
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import find_all
from rlcore.train.trainer import Trainer
from rlcore.train.warmup import NullRanks
from rlcore.types import Trajectory

ToCompile = tuple[Callable[..., Any], package.TracedFunction]
log = logging.getLogger(__name__)


def compiled_equals_eager(config: RunConfig) -> None:
    """Check that traced functions compute the same as eager code, except for rounding, without compiling them.

    The check traces policy inference and gradient steps of a training with one rank, and policy inference and gradients
    of a training with two ranks.

    A traced graph contains each value that is not a parameter, buffer or argument as a constant, so that later changes
    of this value have no effect. To detect such values, the functions are traced again after a few updates, and the two
    graphs of each function must be equal.
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
    """Check that all functions of the algorithm can be compiled, and that machine code and traced graph agree.

    The check can take minutes: for Dreamer V3 with small networks, it needs more than three minutes of processor time,
    most of it in torch's compiler. The machine code is stored in the cache that training uses: SHEPHERD_CACHE or
    `.shepherd/compiled`. If this machine has no C++ compiler, a warning is logged and the check is skipped.
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
    """Return keyword arguments of `fresh` for each training whose functions are to be compiled.

    The first training has one rank. If the learner has a `Step` (gradient step that can be compiled as one function), a
    second training is rank 0 of two, because with two ranks only the gradient in such a step is compiled.
    """
    return [{}, {"ranks": NullRanks(size=2)}] if find_all(fresh(config).learner, Step) else [{}]


def _compare(config: RunConfig, traced: list[ToCompile], how: dict[str, Any]) -> None:
    """Compare an eager training with one that executes traced graphs: rollouts and modules, over a few updates.

    Args:
        config: config of both trainings.
        traced: list to which the traced functions are appended.
        how: keyword arguments of `fresh` for both trainings.

    Raises:
        AssertionError: if outputs of the agent, parameters or buffers differ by more than rounding.
    """
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


def _collect(training: Trainer) -> dict[str, Tensor]:
    """Collect one rollout; return its actions, the extra outputs of the agent (`Trajectory.extras`) and the last carry.

    The result is a dict: name -> tensor.
    """
    rows: dict[str, Tensor] = {}

    def extend(steps: Trajectory, last: Trajectory) -> None:
        parts = {"the action": steps.action} | {f"extra {key}": value for key, value in steps.extras.items()}
        parts |= name_leaves(last.carry)
        rows.update({name: value.clone() for name, value in parts.items()})
        type(training.buffer).extend(training.buffer, steps, last)

    with mock.patch.object(training.buffer, "extend", extend):
        training.collect_rollout()
    return rows


def _agree(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5)


@contextmanager
def _graphs(traced: list[ToCompile]) -> Iterator[None]:
    """Return a context in which functions are traced but not compiled, and the traced graphs are executed.

    The cache of compiled functions is ignored. Each function and its graph are appended to `traced`.
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
    with in_place, mock.patch("rlcore.train.trainer.warm_up", lambda *_: None):
        yield


def _key(function: Callable[..., Any], example: list[Tensor]) -> str:
    return package.content_key(machine_code.trace(function, example), example)
