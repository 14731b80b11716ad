"""Traced functions in the place of their machine code, whose numbers tests/contract holds against them."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from rlcore.compiled.package import Compiled, TracedFunction


def run_graphs(functions: Sequence[TracedFunction]) -> list[Compiled]:
    """As `rlcore.compiled.package.build`, without a compiler."""
    return [_run(each.graph) for each in functions]


def _run(graph: GraphModule) -> Compiled:
    return lambda inputs: list(graph(*inputs))
