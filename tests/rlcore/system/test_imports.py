from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.system.imports import import_soon
from tests.processes import ROOT, wait_for

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
around = fabric.setup(compiled)  # unwraps the compiled module, and compiles it again inside its own wrapper
assert type(around._forward_module) is type(compiled) and around._original_module is compiled._orig_mod
assert torch.equal(around(torch.ones(2)), compiled(torch.ones(2)))
"""
OPTIMIZERS = """
import sys
from rlcore.system.imports import COMPILER, large_imports, without_compiler

with large_imports("torch"), without_compiler():
    import lightning_fabric
from rlcore.optim.optimizer_keys import SETTINGS, OptimizerConfig
from tests.rlcore.optim.test_optimizer import make_optimizer, take_step

for name in SETTINGS:
    module, optimizer = make_optimizer(OptimizerConfig(name=name))
    take_step(optimizer, [3, 4])
    optimizer.load_state_dict(optimizer.state_dict())
assert COMPILER not in sys.modules
"""


@pytest.mark.parametrize("program", [LATER, OPTIMIZERS], ids=["fabric", "optimizers"])
def test_compiler_is_imported_at_first_compile(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


NO_TORCH = """
import sys
from pathlib import Path
from flows.config.compose import compose
from flows.runs.create import new_run
from rlcore.errors import UserError

for words in (["exp=ppo"], ["exp=a2c", "env.id=Pendulum-v1"]):
    compose(words)
try:
    new_run(["exp=ppo", "distribution.type=normal", "run_dir=refused"])
except UserError as error:
    assert "distribution.type=normal" in str(error), error
new_run(["exp=ppo", "run_dir=made"])
assert "torch" not in sys.modules
from rlcore.algorithms import ALGORITHMS
assert callable(ALGORITHMS["ppo"].build) and "torch" in sys.modules
"""


def test_new_run_never_imports_torch(tmp_path: Path) -> None:
    variables = os.environ | {"PYTHONPATH": str(ROOT), "SHEPHERD_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", NO_TORCH], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "made" / "config.yaml").exists() and not (tmp_path / "refused").exists()


def test_import_soon_imports_in_background_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import threading, time\ntime.sleep(0.2)\nwho = threading.current_thread().name\n"
    (tmp_path / "slow_import.py").write_text(source)
    (tmp_path / "faulty_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_soon("faulty_import", "slow_import")
    wait_for(lambda: "slow_import" in sys.modules, "the thread")
    assert importlib.import_module("slow_import").who == "imports"
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("faulty_import")
