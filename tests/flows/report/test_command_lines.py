"""Commands for copying into a shell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from flows.report.command_lines import resume_command, short_path


def test_short_path_is_relative_below_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert short_path(tmp_path / "here" / "runs" / "a") == "runs/a"
    assert short_path(tmp_path / "there") == str(tmp_path / "there")


@pytest.mark.parametrize("on_path", [True, False])
def test_resume_command_quotes_folder_names(on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "my env" / "bin").mkdir(parents=True)
    (folder / "shepherd").write_text("")
    (folder / "shepherd").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(folder) if on_path else str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    program = "shepherd" if on_path else "my env/bin/shepherd"
    assert shlex.split(resume_command("runs/a run")) == [program, "resume", "runs/a run"]
