"""Transposed products with a thin result: which products, and that values and strides stay the same."""

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
        (256, 1, torch.float32, False),  # matrix-vector products have their own implementation
        (256, 16, torch.float32, False),
        (256, 67, torch.float32, False),
        (63, 6, torch.float32, False),
        (256, 6, torch.bfloat16, False),
    ],
)
def test_thin_products_are_transposed_with_same_result(
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
            result = super().run_node(n)
            if n is product:
                assert isinstance(result, Tensor)
                shapes.append(tuple(result.shape))
            return result

    (found,) = Watch(graph).run(*example)
    assert shapes == [(columns, rows) if turned else (rows, columns)]
    torch.testing.assert_close(found, function(*example)[0])
