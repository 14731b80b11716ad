"""Gradient steps on tensors of another device than the CPU: no tensor is on the CPU, and no step synchronizes.

CUDA graphs require this. The tensors have shapes and a device but no values. The device is "meta", because a torch
without CUDA cannot index fake tensors of a GPU. For real GPUs see tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from rlcore.algorithms.sac import learner  # noqa: F401  one test changes a function of it
from rlcore.compiled import machine_code
from tests.contract.test_registry import every_pair, small, small_of_images, with_images
from tests.golden.mutants import Change, changed, swap
from tests.learning.assembly import Trainer
from tests.soaking import heavy

pytestmark = heavy
DEVICE = torch.device("meta")
STEP = "the gradient step"


class OtherDevice:
    """Replacement of `machine_code.make_once` that calls the function on such tensors and compiles nothing."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self.error: Exception | None = None

    def __call__(
        self, what: str, function: Callable[..., Any], example: Sequence[Tensor], facts: machine_code.Facts, *_: Any
    ) -> Any:
        """Call a gradient step; skip policy inference, which is not compiled on a GPU."""
        if what == STEP:
            mode = FakeTensorMode()
            given = [FakeTensor(mode, tensor.detach().to(DEVICE), DEVICE) for tensor in example]
            try:
                with mode:
                    self.results += function(*given)
            except Exception as error:
                self.error = error
                raise
        return lambda inputs: list(function(*inputs)), facts.notes()


def tried(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Trainer]) -> OtherDevice:
    """Train for 64 policy steps; the results of the gradient steps."""
    device = OtherDevice()
    monkeypatch.setattr(machine_code, "make_once", device)
    make().run(64)
    return device


@every_pair
def test_gradient_step_stays_on_its_device(algo: str, env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tried(monkeypatch, lambda: small(algo, env_id, compile=True))
    assert device.error is None and device.results
    assert {tensor.device for tensor in device.results} == {DEVICE}


@with_images
def test_gradient_step_on_images_stays_on_device(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tried(monkeypatch, lambda: small_of_images(algo, compile=True))
    assert device.error is None and device.results
    assert {tensor.device for tensor in device.results} == {DEVICE}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (swap("0.5 * A", "torch.full((1,), 0.5) * A"), RuntimeError),
        (swap("0.5 * A", "(0.5 if target.sum() > 0 else 0.25) * A"), DataDependentOutputException),
    ],
    ids=["a tensor of the host", "a number that is waited for"],
)
def test_device_check_rejects_host_tensors_and_waits(
    change: Change, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed("sac.critic_loss", change):
        device = tried(monkeypatch, lambda: small("sac", "Pendulum-v1", compile=True))
    assert isinstance(device.error, error)
