"""Matrix products with a tall and thin result, computed as the transposed product: same numbers, up to 5x as fast."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

# MKL processes few columns at a time if their number is small and not a multiple of 16. The gradient [256, 6] of the
# weights of a first layer, for 512 samples, takes 170 µs in the original form and 33 µs transposed.
MANY, ABREAST, TALL = 64, 16, 64


def turn_thin_products(graph: GraphModule) -> GraphModule:
    """Rewrite each product A B [M, N] with a tall and thin result as (Bᵀ Aᵀ)ᵀ, in place, and return the graph."""
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
