"""Progress bar of a training in a notebook."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook; False in scripts and in IPython's terminal."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return "IPKernelApp" in getattr(shell, "config", ())


class ProgressBar:
    """Bar of the package tqdm that shows the policy steps of a training. It is drawn at most ten times per second.

    Args:
        total: policy steps of the whole training; None if they are unknown.
    """

    def __init__(self, total: int | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets, tqdm draws the bar as text
            from tqdm.auto import tqdm  # 0.1 s

            self._bar: Any = tqdm(total=total, unit=" steps", desc="train")

    def update(self, policy_steps: int, episode_return: float | None, total: int | None = None) -> None:
        """Show the policy steps so far and, if there is one, the mean return of recent episodes.

        `total` replaces the policy steps of the whole training, unless it is None.
        """
        self._bar.total = self._bar.total if total is None else total
        if episode_return is not None:
            self._bar.set_postfix_str(f"return {episode_return:,.4g}", refresh=False)
        self._bar.update(policy_steps - self._bar.n)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(text, file=sys.stdout)

    def close(self) -> None:
        """Draw the last state of the bar."""
        self._bar.close()


@contextmanager
def notebook_bar(total: int | None, done: int = 0, wanted: bool = True) -> Iterator[ProgressBar | None]:
    """Context manager that shows a progress bar in a notebook; elsewhere it does nothing and yields None.

    Args:
        total: policy steps of the whole training; None if they are unknown.
        done: policy steps that are already done, for example before a checkpoint was loaded.
        wanted: False shows no bar in a notebook either.

    Yields:
        The bar, or None.
    """
    if not (wanted and in_notebook()):
        yield None
        return
    bar = ProgressBar(total)
    try:
        bar.update(done, None)
        yield bar
    finally:
        bar.close()
