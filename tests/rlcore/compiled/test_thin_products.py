"""Products with a thin result, on their side: which ones, and that numbers and strides stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlcore.compiled import machine_code


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "turned"),
    [
        (256, 6, torch.float32, True),
        (64, 63, torch.float32, True),
        (256, 1, torch.float32, False),  # a product with a vector has a way of its own
        (256, 16, torch.float32, False),
        (256, 67, torch.float32, False),
        (63, 6, torch.float32, False),
        (256, 6, torch.bfloat16, False),
    ],
)
def test_what_is_tall_and_thin_is_computed_on_its_side(
    rows: int, columns: int, dtype: torch.dtype, turned: bool
) -> None:
    def function(gradient: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return ((gradient.t() @ x).view(-1) * 2,)

    generator = torch.Generator().manual_seed(0)
    example = [torch.randn(32, size, generator=generator).to(dtype) for size in (rows, columns)]
    graph = machine_code.trace(function, example)
    (product,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    shapes: list[tuple[int, ...]] = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            made = super().run_node(n)
            if n is product:
                assert isinstance(made, Tensor)
                shapes.append(tuple(made.shape))
            return made

    (found,) = Watch(graph).run(*example)
    assert shapes == [(columns, rows) if turned else (rows, columns)]
    torch.testing.assert_close(found, function(*example)[0])
