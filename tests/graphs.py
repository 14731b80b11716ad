"""Traced functions instead of their machine code; tests/contract compares the two."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from rlcore.compiled.package import Compiled, TracedFunction


def run_graphs(functions: Sequence[TracedFunction]) -> list[Compiled]:
    """Build like `rlcore.compiled.package.build`, but without a compiler."""
    return [_run(each.graph) for each in functions]


def _run(graph: GraphModule) -> Compiled:
    return lambda inputs: list(graph(*inputs))
