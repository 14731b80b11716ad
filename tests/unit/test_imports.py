from __future__ import annotations

import subprocess
import sys

LATER = """
import sys
from rlcore.imports import COMPILER, large_imports, without_compiler

with large_imports("torch"), without_compiler():
    import lightning_fabric
import torch

fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)
plain = fabric.setup(torch.nn.Linear(2, 1))
assert plain(torch.ones(2)).shape == (1,) and not hasattr(plain._forward_module, "_orig_mod")
assert COMPILER not in sys.modules

compiled = torch.compile(torch.nn.Linear(2, 1), backend="eager")
assert COMPILER in sys.modules
around = fabric.setup(compiled)  # takes the compiled module apart and compiles it again, around its own wrapper
assert type(around._forward_module) is type(compiled) and around._original_module is compiled._orig_mod
assert torch.equal(around(torch.ones(2)), compiled(torch.ones(2)))
"""


def test_fabric_knows_a_compiled_module_though_the_compiler_came_later() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)
