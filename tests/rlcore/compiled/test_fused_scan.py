"""Loops over time with fused steps: values and gradients of the plain loop, also when called again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.compiled import fused_scan
from rlcore.errors import CompilationError
from rlcore.functional.scan import scan
from rlcore.functional.tree import map_leaves
from tests.rlcore.compiled.test_scan import T, gradients, loss, problem, unrolled
from tests.soaking import heavy

pytestmark = [heavy, pytest.mark.slow]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the graphs that were fused."""
    graphs, fuse = list[Any](), fused_scan.fuse

    def record_graph(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return fuse(graph, example)

    monkeypatch.setattr(fused_scan, "fuse", record_graph)
    return graphs


def test_fused_scan_matches_unrolled_values_and_gradients(kernels: list[Any]) -> None:
    given = problem()
    other = map_leaves(lambda t: t.flip(0) if t.dim() > 1 or t.dtype == torch.bool else t, given)
    with fused_scan.fusing() as loops:
        for now in (given, other, given):
            loops.begin()
            for one, wanted in zip(gradients(loss, *now), gradients(unrolled, *now), strict=True):
                torch.testing.assert_close(one, wanted)
    assert len(kernels) == 2  # a step and its gradient, for all t and all calls
    loops.begin()
    assert loops.meet().products == ["weight" in name for name in sorted(given[2])], "weights behind the loop"


def test_fused_scan_keeps_equal_loops_separate(kernels: list[Any]) -> None:
    """Two loops with the same code and shapes, like members of an ensemble; the rows need no gradient."""

    def function(x: Tensor, weights: Tensor) -> Tensor:
        total = x.new_zeros(())
        for factor in (2.0, 3.0):
            _, y = scan(lambda h, x, w, f=factor: ((h * w * f + x).tanh(),) * 2, torch.ones(3), x, weights)
            total = total + y.square().sum()
        return total

    x, weights = torch.randn(T, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.3, -0.2, 0.1])
    found = list[Tensor]()
    for fused in (False, True):
        weights = weights.detach().requires_grad_()
        if fused:
            with fused_scan.fusing():
                found += torch.autograd.grad(function(x, weights), [weights])
        else:
            found += torch.autograd.grad(function(x, weights), [weights])
    torch.testing.assert_close(found[1], found[0])
    assert len(kernels) == 4


def test_fused_scan_inlines_nested_loop(kernels: list[Any]) -> None:
    """The loop after both is then the second one in every call."""
    x, w = torch.randn(T, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 0.3, -0.2])

    def outer(h: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        inner, _ = scan(lambda h, x, w: ((h * x + w).tanh(),) * 2, h, torch.stack([x, x]), w)
        return inner, inner

    def function(w: Tensor) -> Tensor:
        first, _ = scan(outer, torch.ones(3), x, w)
        return scan(lambda h, x, w: ((h - w * x).tanh(),) * 2, first, x, w)[1].sum()

    def gradient() -> Tensor:
        return torch.autograd.grad(function(leaf), [leaf])[0]

    leaf = w.requires_grad_()
    eager = gradient()
    with fused_scan.fusing() as loops:
        for _ in range(2):
            loops.begin()
            torch.testing.assert_close(gradient(), eager)
    assert len(kernels) == 4


def test_fused_scan_gradient_has_precision_of_loss(kernels: list[Any]) -> None:
    """The backward products are in bfloat16, although the gradient is computed outside of autocast."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((T, 3, 4), (4, 4)))
    weight.requires_grad_()

    def value(weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return scan(lambda h, x, w: (((h + x) @ w).float().tanh(),) * 2, torch.zeros(3, 4), x, weight)[1].sum()

    (eager,) = torch.autograd.grad(value(weight), [weight])
    with fused_scan.fusing():
        (found,) = torch.autograd.grad(value(weight), [weight])
    torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert all(torch.bfloat16 in {node.meta["val"].dtype for node in products(graph)} for graph in kernels)


def products(graph: Any) -> list[Any]:
    return [node for node in graph.graph.nodes if "mm" in str(node.target)]


@pytest.mark.parametrize("learned", [True, False])
def test_fused_scan_refuses_captured_tensor(learned: bool) -> None:
    """The kernels would treat a parameter as a constant, and it would never learn."""
    other: Any = torch.nn.Parameter(torch.ones(3), learned)
    with (
        fused_scan.fusing(),
        pytest.raises((RuntimeError, CompilationError), match="not its inputs|not an argument of the step"),
    ):
        scan(lambda h, x, w: ((h * other + x * w).tanh(),) * 2, torch.ones(3), torch.ones(T, 3), torch.ones(3))


def test_fused_scan_refuses_loops_in_other_order() -> None:
    with fused_scan.fusing() as loops:
        scan(lambda h, x, _: (h + x, h), torch.ones(3), torch.ones(T, 3))
        loops.begin()
        with pytest.raises(RuntimeError, match="in the same order in every call"):
            scan(lambda h, x, _: (h + x, h), torch.ones(4), torch.ones(T, 4))


def test_fused_scan_skips_detached_outputs_and_second_derivative() -> None:
    def value(w: Tensor) -> Tensor:
        def step(h: Any, x: Any, w: Any) -> Any:
            return (h * w + x).tanh(), (h.detach() * 2, h)

        _, (still, moving) = scan(step, torch.ones(3), torch.ones(T, 3), w)
        return (still + moving).sum()

    w = torch.tensor([0.3, -0.2, 0.1]).requires_grad_()
    (eager,) = torch.autograd.grad(value(w), [w])
    with fused_scan.fusing():
        (found,) = torch.autograd.grad(value(w), [w], create_graph=True)
    torch.testing.assert_close(found, eager)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(found.sum(), [w])
