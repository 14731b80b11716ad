"""The notebook about batched environments runs from its first to its last cell."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest

from tests import processes

NOTEBOOK = processes.ROOT / "examples/batched_environment.ipynb"


@pytest.mark.slow
def test_batched_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source, name = "".join(cell["source"]), f"<{cell['id']}>"
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
    assert "Rewards/rew_avg" in capsys.readouterr().out
    first, *_, last = namespace["result"].evaluations.values()
    assert last["mean"] > first["mean"] > -80
    assert namespace["policy"].predict([[0.5, 0.0], [-0.5, 0.0]]).tolist() == [0, 2]
