"""Faster matrix products on the CPU, if the result has many rows and few columns.

Such a product is computed as the transpose of (Bᵀ Aᵀ), which gives the same numbers up to 5 times as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

# MKL processes few columns at a time if their number is small and not a multiple of 16. The gradient [256, 6] of the
# weights of a first layer, for 512 samples, takes 170 µs in the original form and 33 µs transposed.
MANY, ABREAST, TALL = 64, 16, 64


def turn_thin_products(graph: GraphModule) -> GraphModule:
    """Replace each float32 product A B [M, N] with many rows and few columns by (Bᵀ Aᵀ)ᵀ in a traced graph.

    Args:
        graph: the traced graph; changed in place. Products with M >= 64 and 1 < N < 64 are replaced, except those with
            N a multiple of 16.

    Returns:
        The same graph.
    """
    mm, t, clone = torch.ops.aten.mm.default, torch.ops.aten.t.default, torch.ops.aten.clone.default
    call: Any = graph.graph.call_function
    as_before = {"memory_format": torch.contiguous_format}
    for node in graph.graph.find_nodes(op="call_function", target=mm):
        result = node.meta["val"]
        rows, columns = result.shape
        if result.dtype == torch.float32 and rows >= TALL and 1 < columns < MANY and columns % ABREAST:
            with graph.graph.inserting_before(node):
                one, other = node.args
                turned = call(mm, (call(t, (other,)), call(t, (one,))))
                node.replace_all_uses_with(call(clone, (call(t, (turned,)),), as_before))
            graph.graph.erase_node(node)
    graph.recompile()
    return graph
