"""Machine code is compared with the traced function: other rounding is accepted, other mathematics is not."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlcore.compiled import machine_code, package
from rlcore.compiled.package import Compiled, TracedFunction, cache_folder, check, find, kernels_folder
from rlcore.errors import CompilationError
from rlcore.optim import rules
from rlcore.optim.optimizer_keys import OptimizerConfig

ADAM = OptimizerConfig(name="adam", lr=1e-3, eps=1e-8)
INPUTS, UNITS, MEMORY = 3, 8, (1, 2)


def step(
    vector: Tensor, first: Tensor, second: Tensor, count: Tensor, obs: Tensor, wanted: Tensor
) -> tuple[Tensor, ...]:
    """Take a step of Adam on a linear layer with outputs normalized over the batch: the bias has gradient 0."""
    vector = vector.detach().requires_grad_()
    result = obs @ vector[UNITS:].view(INPUTS, UNITS) + vector[:UNITS]
    loss = ((result - result.mean(0)) / result.std(0) - wanted).square().mean()
    (gradient,) = torch.autograd.grad(loss, vector)
    state, lr = {"exp_avg": first, "exp_avg_sq": second}, torch.tensor(1e-3, dtype=torch.float64)
    after, state = rules.update(ADAM, vector.detach(), gradient, state, count + 1, lr)
    return after, state["exp_avg"], state["exp_avg_sq"], loss.detach()


def traced(memory: Sequence[int] = MEMORY) -> TracedFunction:
    rng = torch.Generator().manual_seed(0)
    vector = torch.randn(UNITS * (INPUTS + 1), generator=rng) / 2
    obs, wanted = (torch.randn(100, size, generator=rng) for size in (INPUTS, UNITS))
    empty = torch.zeros_like(vector)
    example = [vector, empty, empty.clone(), torch.zeros((), dtype=torch.float64), obs, wanted]
    return TracedFunction("a step", machine_code.trace(step, example), example, memory=memory)


def sum_in_reverse_order(result: TracedFunction) -> Compiled:
    """Return the same function with the rows of the batch in reverse order."""
    return lambda inputs: list(result.graph(*inputs[:4], *(value.flip(0) for value in inputs[4:])))


def test_check_accepts_rounding_of_zero_gradient() -> None:
    result = traced()
    check(sum_in_reverse_order(result), result)
    after, other = (
        run([*result.example])[0] for run in (lambda inputs: list(result.graph(*inputs)), sum_in_reverse_order(result))
    )
    assert (after - other).abs().max() > 1e-3  # an empty optimizer state amplifies the rounding


def test_check_accepts_rounding_across_kink() -> None:
    """Other rounding turns a sum of 1e-9 into -1e-9: the gradient of a ReLU loses one sample of 100."""
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    rows[17] = torch.tensor([0.5, -0.5, 1e-9])

    def gradient(rows: Tensor) -> tuple[Tensor, ...]:
        return ((rows.sum(1) > 0).float().mean(),)

    result = TracedFunction("a gradient", machine_code.trace(gradient, [rows]), [rows])

    def shift(by: float) -> Compiled:
        return lambda inputs: list(result.graph(inputs[0] - torch.tensor([0, 0, by])))

    check(shift(2e-9), result)
    with pytest.raises(CompilationError, match="is wrong by"):
        check(shift(0.3), result)


Outputs = list[Tensor]
FAULTS: dict[str, Callable[[list[Tensor], Outputs], Outputs]] = {
    "a gradient of the wrong sign": lambda given, result: [2 * given[0] - result[0], *result[1:]],
    "parameters that are left as they were": lambda given, result: [given[0], *result[1:]],
    "one layer that is left as it was": lambda given, result: [torch.cat([result[0][:-8], given[0][-8:]]), *result[1:]],
    "half a learning rate": lambda given, result: [(given[0] + result[0]) / 2, *result[1:]],
    "a memory that is left as it was": lambda given, result: [result[0], given[1], *result[2:]],
    "a memory of gradients that are a hundredth off": lambda given, result: [
        result[0], given[1] + 1.01 * (result[1] - given[1]), *result[2:],
    ],
    "a loss of half the size": lambda given, result: [*result[:3], result[3] / 2],
    "a number that is none": lambda given, result: [result[0] * torch.nan, *result[1:]],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_check_refuses_wrong_machine_code(fault: str) -> None:
    result = traced()
    with pytest.raises(CompilationError, match="a bug of the compiler"):
        check(lambda inputs: FAULTS[fault](inputs, list(result.graph(*inputs))), result)


def give_away(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file or folder to another user, or let others write to it."""
    if how != "owner":
        path.chmod(0o775 if how == "group" else 0o757)
    elif os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


OTHERS = {"owner": "belongs to another user", "group": "can be written by", "all": "can be written by other users"}


@pytest.mark.parametrize("how", OTHERS)
def test_cache_folder_ignores_folder_writable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("SHEPHERD_CACHE", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == shared
    give_away(shared, how, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert [cache_folder(), cache_folder()] == [tmp_path / "own/shepherd/compiled"] * 2
    (warning,) = caplog.messages
    assert warning.startswith(f"{shared} {OTHERS[how]}")


@pytest.mark.parametrize("how", OTHERS)
def test_find_ignores_package_writable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    old = os.umask(0)
    try:
        package._write_whole(tmp_path, package._name("key", b"code"), b"code")
    finally:
        os.umask(old)
    assert find(tmp_path, "key") == b"code"
    (path,) = tmp_path.iterdir()
    give_away(path, how, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path, "key") is None
    assert f"{path} {OTHERS[how]}" in caplog.text and not path.exists()


def test_kernels_folder_is_recreated_if_writable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    (tmp_path / "kernels/old").mkdir(parents=True)
    (tmp_path / "kernels").chmod(0o777)
    for _ in range(2):
        assert kernels_folder() == tmp_path / "kernels"
        assert [path.name for path in tmp_path.rglob("*")] == ["kernels"]
        assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700


def test_kernels_folder_creates_usable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path / "cache"))
    old = os.umask(0)
    try:
        assert kernels_folder() == tmp_path / "cache/kernels"
    finally:
        os.umask(old)
    assert cache_folder() == tmp_path / "cache"
