"""Adaptations of Inductor that avoid repeated computation of the same value."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT
from tests.soaking import heavy

pytestmark = [heavy, pytest.mark.slow]

SCRIPT = """
import torch
from torch._inductor import compile_fx
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from rlcore.compiled import compiler

def function(x, count):
    return (x / (x.square().sum(0) + 1).sqrt() * (1 - 0.9**count).float(),)

torch.set_num_threads(1)
if ADAPT:
    compiler._spread_what_is_computed()
example = [torch.randn(64, 256), torch.tensor(3.0, dtype=torch.float64)]
graph = make_fx(function)(*example)
(found,), (code,) = run_and_get_code(lambda: torch._inductor.compile(graph, example)(*example))
torch.testing.assert_close(found, *function(*example))
print(code)
"""


def innermost_loop(adapt: bool) -> str:
    """Return the code from the last loop on, which runs over all 64 × 256 elements."""
    words = [sys.executable, "-c", SCRIPT.replace("ADAPT", str(adapt))]
    variables = os.environ | {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}  # its keys do not contain the adaptation
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=variables, cwd=ROOT)
    return done.stdout.split("for(")[-1]


@pytest.mark.parametrize("adapt", [True, False])
def test_inductor_computes_broadcast_values_before_loop(adapt: bool) -> None:
    """The case without the adaptation fails when a newer Inductor no longer needs it."""
    code = innermost_loop(adapt)
    assert all((operation in code) is not adapt for operation in (".sqrt()", "std::pow")) and " / " in code
