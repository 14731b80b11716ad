"""Machine code is held against what was traced: other rounding passes, other mathematics does not."""

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
    """One step of Adam on a linear layer whose outputs are normalised over the batch: the gradient of its bias is 0."""
    vector = vector.detach().requires_grad_()
    made = obs @ vector[UNITS:].view(INPUTS, UNITS) + vector[:UNITS]
    loss = ((made - made.mean(0)) / made.std(0) - wanted).square().mean()
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


def summed_in_another_order(made: TracedFunction) -> Compiled:
    """Equal mathematics, with the rows of the batch from the last to the first."""
    return lambda inputs: list(made.graph(*inputs[:4], *(value.flip(0) for value in inputs[4:])))


def test_another_order_of_sums_is_no_fault_where_a_gradient_is_zero_but_for_rounding() -> None:
    made = traced()
    check(summed_in_another_order(made), made)
    after, other = (
        run([*made.example])[0] for run in (lambda inputs: list(made.graph(*inputs)), summed_in_another_order(made))
    )
    assert (after - other).abs().max() > 1e-3  # what a memory without numbers makes of it


def test_a_number_on_the_other_side_of_a_kink_is_no_fault() -> None:
    """A sum of 1e-9 that other rounding makes -1e-9: a rectifier's gradient has one sample of the hundred less."""
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    rows[17] = torch.tensor([0.5, -0.5, 1e-9])

    def gradient(rows: Tensor) -> tuple[Tensor, ...]:
        return ((rows.sum(1) > 0).float().mean(),)

    made = TracedFunction("a gradient", machine_code.trace(gradient, [rows]), [rows])

    def shift(by: float) -> Compiled:
        return lambda inputs: list(made.graph(inputs[0] - torch.tensor([0, 0, by])))

    check(shift(2e-9), made)
    with pytest.raises(CompilationError, match="is wrong by"):
        check(shift(0.3), made)


Outputs = list[Tensor]
FAULTS: dict[str, Callable[[list[Tensor], Outputs], Outputs]] = {
    "a gradient of the wrong sign": lambda given, made: [2 * given[0] - made[0], *made[1:]],
    "parameters that are left as they were": lambda given, made: [given[0], *made[1:]],
    "one layer that is left as it was": lambda given, made: [torch.cat([made[0][:-8], given[0][-8:]]), *made[1:]],
    "half a learning rate": lambda given, made: [(given[0] + made[0]) / 2, *made[1:]],
    "a memory that is left as it was": lambda given, made: [made[0], given[1], *made[2:]],
    "a memory of gradients that are a hundredth off": lambda given, made: [
        made[0], given[1] + 1.01 * (made[1] - given[1]), *made[2:],
    ],
    "a loss of half the size": lambda given, made: [*made[:3], made[3] / 2],
    "a number that is none": lambda given, made: [made[0] * torch.nan, *made[1:]],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_that_computes_something_else_is_refused(fault: str) -> None:
    made = traced()
    with pytest.raises(CompilationError, match="a bug of the compiler"):
        check(lambda inputs: FAULTS[fault](inputs, list(made.graph(*inputs))), made)


def give_away(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file or folder belong to another user, or let others write to it."""
    if how != "owner":
        path.chmod(0o775 if how == "group" else 0o757)
    elif os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


OTHERS = {"owner": "belongs to another user", "group": "can be written by", "all": "can be written by other users"}


@pytest.mark.parametrize("how", OTHERS)
def test_cache_folder_ignores_one_that_others_can_write(
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
def test_find_ignores_a_package_that_others_can_write(
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


def test_kernels_folder_is_made_again_if_others_can_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    (tmp_path / "kernels/old").mkdir(parents=True)
    (tmp_path / "kernels").chmod(0o777)
    for _ in range(2):
        assert kernels_folder() == tmp_path / "kernels"
        assert [path.name for path in tmp_path.rglob("*")] == ["kernels"]
        assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700


def test_kernels_folder_creates_a_cache_folder_that_stays_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path / "cache"))
    old = os.umask(0)
    try:
        assert kernels_folder() == tmp_path / "cache/kernels"
    finally:
        os.umask(old)
    assert cache_folder() == tmp_path / "cache"
