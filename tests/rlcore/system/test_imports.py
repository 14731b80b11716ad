from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
LATER = """
import sys
from rlcore.system.imports import COMPILER, large_imports, without_compiler

with large_imports("torch"), without_compiler():
    import lightning_fabric
    from lightning_fabric.wrappers import OptimizedModule
    import torch
    assert not isinstance(torch.nn.Linear(2, 1), OptimizedModule)

fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)
plain = fabric.setup(torch.nn.Linear(2, 1))
assert plain(torch.ones(2)).shape == (1,) and not hasattr(plain._forward_module, "_orig_mod")
assert COMPILER not in sys.modules

compiled = torch.compile(torch.nn.Linear(2, 1), backend="eager")
assert isinstance(compiled, OptimizedModule) and not isinstance(plain, OptimizedModule)
around = fabric.setup(compiled)  # takes the compiled module apart and compiles it again, around its own wrapper
assert type(around._forward_module) is type(compiled) and around._original_module is compiled._orig_mod
assert torch.equal(around(torch.ones(2)), compiled(torch.ones(2)))
"""
OPTIMIZERS = """
import sys
from rlcore.system.imports import COMPILER, large_imports, without_compiler

with large_imports("torch"), without_compiler():
    import lightning_fabric
from rlcore.optim.rules import SETTINGS, OptimizerConfig
from tests.rlcore.optim.test_optimizer import made, stepped

for name in SETTINGS:
    module, optimizer = made(OptimizerConfig(name=name))
    stepped(optimizer, [3, 4])
    optimizer.load_state_dict(optimizer.state_dict())
assert COMPILER not in sys.modules
"""


@pytest.mark.parametrize("program", [LATER, OPTIMIZERS], ids=["fabric", "optimizers"])
def test_the_compiler_comes_with_the_first_who_compiles(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)
