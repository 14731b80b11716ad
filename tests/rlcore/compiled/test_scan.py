"""Loop over time as one operation: values and gradients of the plain loop, nested, and as machine code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.func import functional_call, grad, grad_and_value

from rlcore.compiled import machine_code, package
from rlcore.errors import CompilationError
from rlcore.functional.scan import scan
from rlcore.functional.tree import leaves, map_leaves, rebuild
from rlcore.nn.recurrent import GRU
from tests.soaking import always, heavy

pytestmark = heavy

T, B, X, H = 7, 3, 4, 5


class Memory(nn.Module):
    """Two cells in sequence with a nested carry; one part is an integer counter, and all parts reset."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(X, H), nn.GRUCell(H, H)

    def forward(self, carry: Any, x: Any) -> Any:
        keep = (~x["is_first"]).float().unsqueeze(-1)
        (h, c), slow, count = carry["fast"], carry["slow"], carry["count"]
        h, c = self.lstm(x["obs"], (h * keep, c * keep))
        slow = self.gru(h, slow * keep)
        count = (count + 1) * ~x["is_first"]
        return {"fast": (h, c), "slow": slow, "count": count}, {"feat": slow, "twice": (slow * 2, count)}


def problem(dtype: torch.dtype = torch.float32) -> tuple[Any, Any, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    carry = {"fast": (normal(B, H), normal(B, H)), "slow": normal(B, H), "count": torch.zeros(B, dtype=torch.long)}
    xs = {"obs": normal(T, B, X), "is_first": torch.rand(T, B, generator=generator) < 0.3}
    params = {name: normal(*p.shape) / 2 for name, p in Memory().named_parameters()}
    return carry, xs, params


CELL = Memory()


def step(carry: Any, x: Any, params: Any) -> Any:
    return functional_call(CELL, params, (carry, x))


def loss(carry: Any, xs: Any, params: Any) -> Tensor:
    last, y = scan(step, carry, xs, params)
    assert (y["twice"][1] >= 0).shape == (T, B) and last["count"].shape == (B,)
    return y["feat"].square().mean() + y["twice"][0].sum() / 9 + last["fast"][1].sum() + last["count"].sum()


def unrolled(carry: Any, xs: Any, params: Any) -> Tensor:
    """Return the loss of the unrolled loop, without `scan`."""
    feats = []
    for t in range(T):
        carry, y = step(carry, {name: x[t] for name, x in xs.items()}, params)
        feats.append(y["feat"])
    feat = torch.stack(feats)
    return feat.square().mean() + feat.sum() * 2 / 9 + carry["fast"][1].sum() + carry["count"].sum()


def gradients(function: Any, *given: Any, transform: bool = False) -> tuple[Tensor, ...]:
    """Return the value and its gradient with respect to all floating-point inputs, by autograd or torch.func."""
    flat = leaves(given)
    at = [i for i, tensor in enumerate(flat) if tensor.is_floating_point()]

    def value(floating: list[Tensor]) -> Tensor:
        left = dict(zip(at, floating, strict=True))
        return function(*rebuild(given, iter([left.get(i, tensor) for i, tensor in enumerate(flat)])))

    if transform:
        found, result = grad_and_value(value)([flat[i] for i in at])
        return (result, *found)
    inputs = [flat[i].detach().requires_grad_() for i in at]
    result = value(inputs)
    return (result.detach(), *torch.autograd.grad(result, inputs))


def traced(transform: bool, given: Any) -> tuple[Any, list[Tensor]]:
    example = leaves(given)
    return machine_code.trace(
        lambda *flat: gradients(loss, *rebuild(given, iter(flat)), transform=transform), example
    ), example


@always
def test_scan_has_gradient_of_unrolled_loop() -> None:
    given = problem(torch.float64)
    for one, other in zip(gradients(loss, *given), gradients(unrolled, *given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("transform", [False, True], ids=["autograd", "torch.func"])
def test_traced_scan_has_gradient_of_unrolled_loop(transform: bool) -> None:
    """The inputs differ from those of the trace."""
    graph, example = traced(transform, problem(torch.float64))
    other = map_leaves(lambda t: t.flip(0) if t.dim() > 1 or t.dtype == torch.bool else t, problem(torch.float64))
    found = graph(*leaves(other))
    for one, wanted in zip(found, gradients(unrolled, *other), strict=True):
        torch.testing.assert_close(one, wanted)
    assert len(example) == len(leaves(other)) and any(node.name == "scan" for node in graph.graph.nodes)


def test_scan_graph_size_is_independent_of_length() -> None:
    def nodes(length: int) -> int:
        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            w = w.detach().requires_grad_()
            _, y = scan(lambda h, x, w: ((h * w + x).tanh(),) * 2, torch.zeros(B), x, w)
            return torch.autograd.grad(y.sum(), [w])

        return len(machine_code.trace(function, [torch.randn(length, B), torch.randn(B)]).graph.nodes)

    assert nodes(4) == nodes(64)


@pytest.mark.parametrize("transform", [False, True], ids=["autograd", "torch.func"])
@pytest.mark.parametrize(("wanted", "parts"), [((0, 1), 3), ((0,), 2), ((1,), 2)], ids=["both", "xs", "params"])
def test_scan_computes_only_required_gradients(wanted: tuple[int, ...], parts: int, transform: bool) -> None:
    """Like the gradient of a world model while its actor learns; the gradient of the carry is always computed."""

    def total(x: Tensor, w: Tensor) -> Tensor:
        return scan(lambda h, x, w: ((h * w + x).tanh(),) * 2, torch.zeros(B), x, w)[1].sum()

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        if transform:
            return grad(total, argnums=wanted)(*given)
        given = tuple(tensor.detach().requires_grad_(i in wanted) for i, tensor in enumerate(given))
        return torch.autograd.grad(total(*given), [given[i] for i in wanted])

    graph = machine_code.trace(function, [torch.randn(T, B), torch.randn(B)]).graph
    *_, back = [node for node in graph.nodes if str(node.target) == "scan"]
    assert len(back.meta["val"]) == parts


def test_scan_content_key_depends_on_step() -> None:
    def key(factor: float) -> str:
        def function(x: Tensor) -> tuple[Tensor, ...]:
            return (scan(lambda h, x, _: (h * factor + x, h * factor), torch.zeros(B), x)[1],)

        example = [torch.randn(T, B)]
        return package.content_key(machine_code.trace(function, example), example)

    assert key(2.0) != key(3.0) and key(2.0) == key(2.0)


def test_scan_compiles_with_parameter_views_of_one_tensor() -> None:
    """Optimizers store parameters in this form."""
    carry, xs, params = problem()
    sizes = [p.numel() for p in params.values()]

    def function(whole: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        parts = zip(params.items(), whole.split(sizes), strict=True)
        views = {name: part.view(p.shape).detach().requires_grad_() for (name, p), part in parts}
        return torch.autograd.grad(loss(*rebuild((carry, xs), iter(flat)), views), [*views.values()])

    example = [torch.cat([p.flatten() for p in params.values()]), *leaves((carry, xs))]
    aot_export_module(machine_code.trace(function, example), example, trace_joint=False)


def test_make_once_keeps_repeated_input_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor passed twice may be two different tensors in the next call."""
    monkeypatch.setattr(machine_code, "build", lambda functions: [lambda given: [*functions[0].graph(*given)]])
    monkeypatch.setattr(machine_code, "_find_known", lambda *_: None)
    facts = machine_code.Facts({}, 0, list, [])
    half = torch.tensor(0.5)
    code, _ = machine_code.make_once("it", lambda a, b: (a - 2 * b,), [half, half], facts)
    assert code([torch.tensor(1.0), torch.tensor(0.25)])[0].item() == 0.5


@pytest.mark.slow
def test_scan_machine_code_matches_unrolled_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of the carry are expanded from one tensor made in the function; inputs must not change."""
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))

    def from_zero(of: Any, carry: Any, xs: Any, params: Any) -> Tensor:
        zero, (h, c) = torch.zeros(1, H).expand(B, H), carry["fast"]
        return of({**carry, "fast": (zero, c), "slow": zero}, xs, params) + 3 * (h * carry["slow"]).sum()

    form = problem()

    def function(*flat: Tensor) -> tuple[Tensor, ...]:
        return gradients(partial(from_zero, loss), *rebuild(form, iter(flat)))

    example = leaves(form)
    (code,) = package.build([package.TracedFunction("a scan", machine_code.trace(function, example), example)])
    given = map_leaves(lambda t: t.flip(0) if t.dim() > 1 else t, problem())
    flat, wanted = leaves(given), gradients(partial(from_zero, unrolled), *given)
    before = [tensor.clone() for tensor in flat]
    for found in (code(list(flat)), code(list(flat))):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(flat, before, strict=True))


@pytest.mark.slow
def test_scan_machine_code_may_overwrite_loop_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may write its result into the rows of the loop, which are not read afterwards."""
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    generator = torch.Generator().manual_seed(0)
    xs, carry, weight = (torch.randn(*shape, generator=generator) for shape in ((T, B, H), (B, H), (H, H)))

    def function(xs: Tensor, carry: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        _, rows = scan(lambda h, x, w: ((h @ w + x).tanh(),) * 2, carry, xs, weight)
        return ((rows * xs).exp(),)

    example = [xs, carry, weight]
    (code,) = package.build([package.TracedFunction("a scan", machine_code.trace(function, example), example)])
    given = [tensor.flip(0) for tensor in example]
    torch.testing.assert_close(code(list(given))[0], function(*given)[0], rtol=1e-5, atol=1e-6)


# Nested, and parameters that a step reads or does not -----------------------------------------------------------------

K = 2  # rows of the inner loop in a row of the outer one


class Stacked(nn.Module):
    """Cell that scans K rows in each step of the outer loop; no step reads `unread`."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.gru, self.unread = nn.Linear(X + H, X), GRU(X, H, torch.Generator()), nn.Linear(H, X)

    def forward(self, carry: dict[str, Tensor], x: dict[str, Tensor]) -> Any:
        row = self.inputs(torch.cat([x["obs"], carry["z"].repeat(K, 1)], -1)).tanh()
        rows, after = self.gru(row, x["is_first"], {"h": carry["h"]})
        return {"h": after["h"], "z": rows[:B].tanh()}, rows.square()


STACKED = Stacked()


def stacked_problem(dtype: torch.dtype = torch.float64) -> tuple[Any, Any, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype) / 2

    params = {name: normal(*p.shape) for name, p in STACKED.named_parameters()}
    first = torch.rand(T, K * B, generator=generator) < 0.3
    return {"h": normal(B, H), "z": normal(B, H)}, {"obs": normal(T, K * B, X), "is_first": first}, params


def stacked_step(carry: Any, x: Any, params: Any) -> Any:
    return functional_call(STACKED, params, (carry, x))


def stacked_loss(carry: Any, xs: Any, params: Any) -> Tensor:
    """Return a loss of all outputs of a scan; `unread`, which no step reads, is used outside of it."""
    last, y = scan(stacked_step, carry, xs, params)
    prediction = y @ params["unread.weight"].t() + params["unread.bias"]
    return y.mean() + last["h"].sum() + prediction.square().sum() / 9


def stacked_unrolled(carry: Any, xs: Any, params: Any) -> Tensor:
    found = []
    for t in range(T):
        carry, y = stacked_step(carry, {name: x[t] for name, x in xs.items()}, params)
        found.append(y)
    y = torch.stack(found)
    prediction = y @ params["unread.weight"].t() + params["unread.bias"]
    return y.mean() + carry["h"].sum() + prediction.square().sum() / 9


@pytest.mark.parametrize("transform", [False, True], ids=["autograd", "torch.func"])
@pytest.mark.parametrize("of", [(0, 1, 2), (0,), (1,), (2,)], ids=["all", "carry", "xs", "params"])
def test_nested_scan_has_gradient_of_unrolled_loop(of: tuple[int, ...], transform: bool) -> None:
    """Gradients with respect to the carry, the rows and the parameters, together and alone."""
    given = stacked_problem()

    def found(loss: Any, *flat: Tensor) -> tuple[Tensor, ...]:
        whole = rebuild(given, iter(flat))

        def value(*some: Any) -> Tensor:
            chosen = dict(zip(of, some, strict=True))
            return loss(*(chosen.get(i, group) for i, group in enumerate(whole)))

        return gradients(value, *(whole[i] for i in of), transform=transform)

    graph = machine_code.trace(partial(found, stacked_loss), leaves(given))
    other = map_leaves(lambda t: t.flip(0), stacked_problem())
    wanted = found(stacked_unrolled, *leaves(other))
    for one, want in zip(graph(*leaves(other)), wanted, strict=True):
        torch.testing.assert_close(one, want)


def test_nested_scan_gradient_matches_finite_differences() -> None:
    """(f(p + h d) - f(p - h d)) / 2 h along random directions d, of the traced function; rounding is 1e-16 / h."""
    given, generator, step = stacked_problem(), torch.Generator().manual_seed(1), 1e-6
    graph = machine_code.trace(lambda *flat: gradients(stacked_loss, *rebuild(given, iter(flat))), leaves(given))
    flat = leaves(given)
    at = [i for i, tensor in enumerate(flat) if tensor.is_floating_point()]
    _, *found = graph(*flat)
    for _ in range(3):
        along = {i: torch.randn(flat[i].shape, generator=generator, dtype=torch.float64) for i in at}
        up, down = (graph(*(t + sign * step * along[i] if i in along else t for i, t in enumerate(flat)))[0]
                    for sign in (1, -1))  # fmt: skip
        slope = sum((gradient * along[i]).sum() for i, gradient in zip(at, found, strict=True))
        torch.testing.assert_close(slope, (up - down) / (2 * step), rtol=1e-6, atol=1e-6)


def test_scan_refuses_captured_parameters() -> None:
    """The gradient of a captured parameter would be zero in the compiled function."""
    weight, rows = torch.randn(H, H), torch.randn(T, B, H)

    def function(weight: Tensor, xs: Tensor) -> tuple[Tensor, ...]:
        closed, handed = weight.detach().requires_grad_(), weight.detach().requires_grad_()
        _, y = scan(lambda h, x, w: ((h @ w + x @ closed).tanh(),) * 2, torch.zeros(B, H), xs, handed)
        return torch.autograd.grad(y.sum(), [closed, handed])

    assert all(gradient.abs().max() > 0 for gradient in function(weight, rows))
    with pytest.raises(
        CompilationError,
        match=r"a tensor of shape \[5, 5\] that requires a gradient and is not an argument of the step",
    ):
        machine_code.trace(function, [weight, rows])


@pytest.mark.slow
def test_scan_machine_code_has_gradient_of_unread_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: Inductor treated the initial zeros of a loop as dead memory, but the loop returned them."""
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    given = stacked_problem(torch.float32)

    def function(*flat: Tensor) -> tuple[Tensor, ...]:
        return gradients(stacked_loss, *rebuild(given, iter(flat)))

    example = leaves(given)
    (code,) = package.build([package.TracedFunction("a scan", machine_code.trace(function, example), example)])
    other = map_leaves(lambda t: t.flip(0), stacked_problem(torch.float32))
    for one, wanted in zip(code(leaves(other)), gradients(stacked_unrolled, *other), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)
