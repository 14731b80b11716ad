"""Training in a notebook: a progress bar, and a summary that is shown with the learning curve."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from flows.report.curve import learning_curve
from flows.report.sentences import describe
from flows.report.tables import summary_html
from flows.runs.listeners import subscribe
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.notebook import notebook_bar

SHOWN = ("baseline", "evaluation", "registered", "stage", "interrupted")  # events that are printed above the bar


class RunSummary(dict[str, Any]):
    """Summary of a run, a dict. A notebook shows it as a table of returns with the learning curve.

    Args:
        summary: content of summary.json.
        run: the run.
    """

    def __init__(self, summary: Mapping[str, Any], run: RunDirectory) -> None:
        super().__init__(summary)
        self._run = run

    def _repr_png_(self) -> bytes | None:
        """Return the picture of the learning curve; None if the run has no folder any more."""
        with suppress(OSError, UserError, RunError):
            if self._run.events.exists():
                return learning_curve(self._run).read_bytes()
        return None

    def _repr_html_(self) -> str | None:
        """Return the table of returns and the learning curve as HTML; None if there is no summary."""
        if "algo" not in self:
            return None
        picture = self._repr_png_()
        image = picture and f'<img width="800" src="data:image/png;base64,{base64.b64encode(picture).decode()}"/>'
        return summary_html(self) + (image or "")


@contextmanager
def notebook_progress(run: RunDirectory) -> Iterator[None]:
    """Context manager that shows the progress of a run in a notebook; elsewhere it does nothing.

    It shows a bar of policy steps, and above it a line for each evaluation and for the registered model.
    """
    with notebook_bar(run.read_config()["algo"]["total_steps"]) as bar:
        if bar is None:
            yield
            return

        def listener(kind: str, facts: dict[str, Any]) -> None:
            if kind == "progress":
                bar.update(facts["policy_steps"], facts["return"], facts["total_steps"])
            elif kind in SHOWN and (sentence := describe(kind, facts)):
                bar.note(sentence)

        with subscribe(listener):
            yield
