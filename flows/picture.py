"""The picture of the pipeline in docs/pipelines.md, drawn from dvc.yaml and from the tasks of the flow.

python -m flows.picture docs/images/pipeline.svg      # draws it anew
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.report import BLUE, GREEN_MARK, GREY, INK, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 8  # parameters of one stage
WIDTH, HEIGHT, GAP = 2.1, 0.62, 0.75  # of a box and between two, inches


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline.

    Attributes:
        name: in dvc.yaml and of the Prefect task.
        parameters: what of params.yaml it depends on, groups without their keys.
        reads: outputs of earlier stages.
        writes: its own outputs, relative to the run directory.
    """

    name: str
    parameters: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def stages(dvc_yaml: Path) -> list[Stage]:
    """The stages of the first pipeline, as dvc.yaml has them.

    Args:
        dvc_yaml: the file.

    Returns:
        In the file's order, which is that of the dependencies.
    """
    import yaml

    found = []
    for name, stage in yaml.safe_load(dvc_yaml.read_text())["stages"].items():
        if "cmd" not in stage:  # of the second pipeline
            continue
        outputs = [*stage.get("outs", ()), *stage.get("metrics", ())]
        writes = [next(iter(out)) if isinstance(out, dict) else out for out in outputs]
        reads = [dependency for dependency in stage["deps"] if dependency.startswith("${run}/")]
        groups = dict.fromkeys(parameter.partition(".")[0] for parameter in stage["params"])
        found.append(Stage(name, tuple(groups), _inside(reads), _inside(writes)))
    return found


def tasks() -> list[str]:
    """Names of the flow's Prefect tasks, in the order in which they are defined."""
    from flows import tasks as module

    return [task.name for task in vars(module).values() if isinstance(task, module.Task)]


def draw(pipeline: Sequence[Stage], looped: Sequence[str], last: Sequence[str], path: Path) -> Path:
    """Draw stages in a row, with what they depend on above and what they write below.

    Args:
        pipeline: the stages.
        looped: tasks that are repeated with `train` until it is done.
        last: tasks of the flow behind the last stage.
        path: an SVG file.

    Returns:
        The file; the same bytes for the same stages and the same Matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    names = [stage.name for stage in pipeline]
    total = len(names) * WIDTH + (len(names) - 1) * GAP
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "shepherd", "font.family": "sans-serif"}):
        figure = Figure(figsize=(total + 0.4, 4.6))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.2, total + 0.2), ylim=(0, 4.6))
        axes.axis("off")
        for index, stage in enumerate(pipeline):
            left = index * (WIDTH + GAP)
            _box(axes, left, 2.6, stage.name, BLUE)
            _list(axes, left, 3.35, ("params.yaml", *_wrapped(stage.parameters)), GREY, "bottom")
            _list(axes, left, 2.48, stage.writes, INK, "top")
            if index:
                _arrow(axes, (left - GAP, 2.91), (left, 2.91), INK)
        middle = names.index("train") * (WIDTH + GAP)
        _loop(axes, middle, looped)
        _list(
            axes, (len(names) - 1) * (WIDTH + GAP), 1.95, [f"then, in the flow: {name}" for name in last], GREY, "top"
        )
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _loop(axes: Axes, middle: float, looped: Sequence[str]) -> None:
    """The boxes under `train`, and the arrows there and back."""
    span = WIDTH + GAP
    for place, name in enumerate(looped):
        left = middle + (place - (len(looped) - 1) / 2) * span
        _box(axes, left, 0.55, name, VERMILION if name == "checkpoint" else GREEN_MARK)
        _arrow(axes, (middle + WIDTH * (0.3 + 0.4 * place), 2.05), (left + WIDTH / 2, 1.17), GREY, "<|-|>")
    text = "in the flow, and inside stage train: due at the boundaries that the config sets, until algo.total_steps"
    axes.text(middle + WIDTH / 2, 0.32, text, ha="center", va="center", fontsize=8.5, color=GREY)


def _box(axes: Axes, left: float, bottom: float, name: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch((left, bottom), WIDTH, HEIGHT, "round,pad=0,rounding_size=0.1", fc=colour, ec="none")
    axes.add_patch(shape)
    centre = (left + WIDTH / 2, bottom + HEIGHT / 2)
    axes.text(*centre, name, ha="center", va="center", fontsize=13, fontweight="bold", color="white")


def _list(axes: Axes, left: float, edge: float, lines: Sequence[str], colour: str, side: Any) -> None:
    text = "\n".join(lines)
    axes.text(left + WIDTH / 2, edge, text, ha="center", va=side, fontsize=8.5, color=colour, linespacing=1.35)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, style: str = "-|>") -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": style, "color": colour, "lw": 1.6, "shrinkA": 3, "shrinkB": 3}
    )


def _wrapped(words: Sequence[str]) -> list[str]:
    """The first names in lines that a box is wide enough for, and how many there are more."""
    import textwrap

    more = [f"and {len(words) - SHOWN} more"] if len(words) > SHOWN else []
    return [*textwrap.wrap(", ".join(words[:SHOWN]), 34), *more]


def _inside(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path.removeprefix("${run}/") for path in paths)


def main(path: Path) -> None:
    """Draw the project's pipeline."""
    pipeline, all_tasks = stages(Path(__file__).resolve().parent.parent / "dvc.yaml"), tasks()
    behind = all_tasks[all_tasks.index(pipeline[-1].name) + 1 :]
    draw(pipeline, ["checkpoint", "evaluate"], behind, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
