from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rlcore.system import notebook


def fake_ipython(monkeypatch: pytest.MonkeyPatch, config: dict[str, object] | None) -> None:
    """A process in which IPython runs with this config; None: IPython is imported, but does not run."""
    shell = None if config is None else SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.parametrize(("config", "found"), [(None, False), ({}, False), ({"IPKernelApp": {}}, True)])
def test_only_kernel_counts_as_notebook(
    config: dict[str, object] | None, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ipython(monkeypatch, config)
    assert notebook.in_notebook() == found


def test_script_without_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook.in_notebook()


def test_notebook_bar_shows_steps_and_return(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    with notebook.notebook_bar(400, done=100) as bar:
        assert bar is not None
        bar.note("evaluation at 200")
        bar.update(400, 12.5)
    printed = capsys.readouterr()
    assert printed.out == "evaluation at 200\n"
    last = printed.err.rstrip().rpartition("\r")[2]
    assert last.startswith("train: 100%")
    assert "400/400" in last
    assert "return 12.5" in last


@pytest.mark.parametrize(("kernel", "wanted"), [(False, True), (True, False)])
def test_no_bar_in_script_or_other_rank(
    kernel: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "in_notebook", lambda: kernel)
    monkeypatch.setattr(notebook, "ProgressBar", None)
    with notebook.notebook_bar(400, wanted=wanted) as bar:
        assert bar is None
    assert capsys.readouterr() == ("", "")
