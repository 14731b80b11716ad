"""Every gradient step on tensors of a device that is not the CPU: nothing of it lies elsewhere, nothing waits.

That is what a CUDA graph asks of a step. The tensors have shapes and a device, and no numbers; the device is called
"meta", since a torch without CUDA cannot index tensors that say they are on a GPU. What a GPU makes of it is tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from rlcore.algorithms.sac import learner  # noqa: F401  a function of it is changed
from rlcore.compiled import machine_code
from tests.contract.test_registry import every_pair, small, small_of_images, with_images
from tests.golden.mutants import Change, changed, swap
from tests.learning.assembly import Trainer
from tests.soaking import heavy

pytestmark = heavy
DEVICE = torch.device("meta")
STEP = "the gradient step"


class OtherDevice:
    """Calls what is to be compiled on such tensors and compiles nothing; in the place of `machine_code.make_once`."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self.error: Exception | None = None

    def __call__(
        self, what: str, function: Callable[..., Any], example: Sequence[Tensor], facts: machine_code.Facts, *_: Any
    ) -> Any:
        """A step, tried; of what acts, which on a GPU is called as it is written, nothing."""
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
    """Whatever a training made of its steps."""
    device = OtherDevice()
    monkeypatch.setattr(machine_code, "make_once", device)
    make().run(64)
    return device


@every_pair
def test_every_step_stays_where_its_tensors_are(algo: str, env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tried(monkeypatch, lambda: small(algo, env_id, compile=True))
    assert device.error is None and device.results
    assert {tensor.device for tensor in device.results} == {DEVICE}


@with_images
def test_every_step_on_images_does_too(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_no_graph_could_hold_is_found(
    change: Change, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed("sac.critic_loss", change):
        device = tried(monkeypatch, lambda: small("sac", "Pendulum-v1", compile=True))
    assert isinstance(device.error, error)
