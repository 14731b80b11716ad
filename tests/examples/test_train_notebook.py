"""The notebook about training runs from its first to its last cell, and shows bars and learning curves."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.system import notebook
from tests import processes
from tests.flows.conftest import home  # noqa: F401 - a fixture

NOTEBOOK = processes.ROOT / "examples/train_in_a_notebook.ipynb"
SMALL = (
    '"env.capture_video=false", "evaluation.final_episodes=4", "evaluation.baseline_episodes=4", "algo.compile=false"'
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")]


def run_cells(namespace: dict[str, Any]) -> list[Any]:
    """Run the code cells; return the value of the last line of each, which a notebook shows if it is an expression."""
    shown: list[Any] = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("total_steps=8192", "total_steps=2048")
            source = source.replace('"run_dir=runs/notebook"', f'"run_dir=runs/notebook", {SMALL}')
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), namespace)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), namespace))
    return shown


def test_train_notebook_runs(
    home: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)  # tqdm draws text without a kernel
    namespace: dict[str, Any] = {"__name__": "notebook"}
    summary, _, _, table, result = run_cells(namespace)
    assert summary["status"] == "finished"
    assert "<td>greedy</td>" in summary._repr_html_()
    assert summary._repr_png_().startswith(b"\x89PNG")
    assert table.loc["runs/notebook", "greedy"] == summary["eval"]["greedy"]["mean"]
    assert "<svg " in result._repr_html_()
    printed = capsys.readouterr()
    assert "2048/2048" in printed.err
    assert f"{namespace['trainer'].end}/{namespace['trainer'].end}" in printed.err
    assert "final evaluation of checkpoint" in printed.out
    assert "random baseline: " in printed.out
