"""What people look at when a run has ended: the tables at the terminal and the learning curve."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.progress import duration
from flows.typed import shown
from rlcore.run.directory import RunDirectory
from rlcore.run.record import last_event, read_events

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 100  # columns; only paths and commands, which are to be copied whole, may be longer
BOLD, DIM, GREEN, CYAN, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[36m", "\x1b[0m"

# Okabe and Ito's colours, which readers of any colour vision can tell apart.
BLUE, VERMILION, GREEN_MARK, GREY = "#0072B2", "#D55E00", "#009E73", "#6b6b6b"
INK, PALE = "#222222", "#dddddd"
FINAL_MARKS = {"greedy": (VERMILION, "*", 14), "stochastic": (GREEN_MARK, "D", 7.5)}


# The learning curve ---------------------------------------------------------------------------------------------------


def learning_curve(run: RunDirectory) -> Path:
    """Draw a run's learning curve from its event log: training, evaluations, random baseline, as far as there are any.

    Args:
        run: the run directory.

    Returns:
        The picture, media/learning_curve.png.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    events = list(read_events(run.events))
    final = last_event(events, "evaluation", final=True)
    # No pyplot: it keeps every figure alive, and it is not safe in the threads that Prefect runs tasks in.
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 0.87))  # title and legend have the rest
    figure = Figure(figsize=(8, 4.5), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    figure.text(0.012, 0.975, _title(events, run), va="top", fontsize=12.5, fontweight="bold", color=INK)
    widths = (3.7, 1) if final else (1,)
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    _dress(panels[0])
    _draw_training(panels[0], events)
    _draw_evaluations(panels[0], events)
    _frame(figure, panels[0])
    if final:
        _draw_final(panels[1], final)
    _draw_baseline(panels, events)
    if final:
        _write_numbers(panels[1], final)
    run.media.mkdir(parents=True, exist_ok=True)
    temporary = run.media / f".{run.curve.name}.{os.getpid()}"
    figure.savefig(temporary, format="png", metadata={"Software": None})
    os.replace(temporary, run.curve)
    return run.curve


def _title(events: Iterable[Mapping[str, Any]], run: RunDirectory) -> str:
    start = next((e for e in events if e["kind"] == "start"), None)
    if start is None:
        return run.path.name
    return f"{str(start['algo']).upper()} on {start['env_id']} · seed {start['seed']}"


def _dress(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel("env steps", color=INK)
    axes.set_ylabel("episode return", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _minus(f"{value:,.6g}")))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_training(axes: Axes, events: Iterable[Mapping[str, Any]]) -> None:
    name = "Rewards/rew_avg"
    points = [(e["env_steps"], e["values"][name]) for e in events if e["kind"] == "metrics" and name in e["values"]]
    if not points:
        return
    steps, returns = zip(*sorted(points), strict=True)
    reach = len(points) // 100  # long runs are noise to the eye: their running mean is drawn over them
    label = "training, sampled actions"
    if reach:
        axes.plot(steps, returns, color=BLUE, linewidth=0.6, alpha=0.35, zorder=2)
        label += f" (mean of {2 * reach + 1} points)"
    mark = "o" if len(points) == 1 else ""
    axes.plot(steps, running_mean(returns, reach), color=BLUE, linewidth=1.6, marker=mark, label=label, zorder=3)


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """The mean of each value with `reach` neighbours on either side; fewer on both sides near the ends.

    Args:
        values: N numbers.
        reach: neighbours on one side; 0 leaves the values as they are.

    Returns:
        N means, each centred on its value.
    """
    means = []
    for i in range(len(values)):
        near = min(reach, i, len(values) - 1 - i)
        part = values[i - near : i + near + 1]
        means.append(sum(part) / len(part))
    return means


def _draw_evaluations(axes: Axes, events: Iterable[Mapping[str, Any]]) -> None:
    judged = [e for e in events if e["kind"] == "evaluation" and not e.get("final") and e.get("greedy")]
    if judged:
        label = "greedy evaluation, 95 % interval"
        _draw_results(axes, [e["env_steps"] for e in judged], [e["greedy"] for e in judged], VERMILION, "o", 5.5, label)


def _draw_final(axes: Axes, final: Mapping[str, Any]) -> None:
    """The last evaluation in a panel of its own, where its marks cover nothing and have room for their numbers."""
    modes = [mode for mode in FINAL_MARKS if final.get(mode)]
    for place, mode in enumerate(modes):
        _draw_results(axes, [place], [final[mode]], *FINAL_MARKS[mode])
    axes.set_xlim(-0.6, len(modes) - 0.4)
    axes.set_xticks(range(len(modes)), modes, fontsize=8.5)
    axes.tick_params(axis="both", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    episodes = final[modes[0]]["episodes"] if modes else 0
    axes.set_xlabel(f"final, {episodes:,} episodes\nat {final['env_steps']:,} env steps", fontsize=9, color=INK)


def _write_numbers(axes: Axes, final: Mapping[str, Any]) -> None:
    """The final means, above or below their marks, wherever the panel has more room."""
    middle = sum(axes.get_ylim()) / 2
    for place, mode in enumerate(mode for mode in FINAL_MARKS if final.get(mode)):
        low, high = final[mode]["ci95"]
        up = final[mode]["mean"] < middle
        axes.annotate(
            _minus(_number(final[mode]["mean"])),
            xy=(place, high if up else low),
            xytext=(0, 9 if up else -9),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=9,
            fontweight="bold",
            color=FINAL_MARKS[mode][0],
        )


def _draw_results(
    axes: Axes, places: Sequence[int], results: Sequence[Any], colour: str, mark: str, size: float, label: str = ""
) -> None:
    means = [result["mean"] for result in results]
    # Rounding may put an interval's end a hair past its mean; a bar's length cannot be negative.
    below = [max(0.0, result["mean"] - result["ci95"][0]) for result in results]
    above = [max(0.0, result["ci95"][1] - result["mean"]) for result in results]
    style = {"color": colour, "linestyle": "", "marker": mark, "markersize": size, "markeredgecolor": "white"}
    drawn = axes.errorbar(
        places, means, yerr=[below, above], label=label, elinewidth=1.2, capsize=2.5, zorder=5, clip_on=False, **style
    )
    for cap in drawn.lines[1]:
        cap.set_markeredgecolor(colour)  # the marks' white edge would make the caps invisible


def _draw_baseline(panels: Sequence[Axes], events: Sequence[Mapping[str, Any]]) -> None:
    baseline = last_event(events, "baseline")
    if baseline is None:
        return
    for axes in panels:
        axes.axhline(baseline["mean"], color=GREY, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2)
    panels[-1].annotate(
        f"random\n{_minus(_number(baseline['mean']))}",
        xy=(1.0, baseline["mean"]),
        xycoords=panels[-1].get_yaxis_transform(),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=GREY,
        annotation_clip=False,
    )


def _frame(figure: Figure, axes: Axes) -> None:
    """Start the axis of steps at 0 and put the legend above the plot, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        axes.text(0.5, 0.75, "nothing measured yet", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xticks([])
        return
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    place = {"loc": "upper left", "bbox_to_anchor": (0.005, 0.925), "ncols": len(handles), "borderaxespad": 0.0}
    legend = figure.legend(handles, labels, frameon=False, fontsize=9, columnspacing=1.8, handletextpad=0.6, **place)
    legend.set_in_layout(False)  # a long legend is not to make the plot narrower


def _minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")


# Tables at the terminal -----------------------------------------------------------------------------------------------


def results_table(
    summary: Mapping[str, Any], run: RunDirectory, next_commands: Sequence[str] = (), colour: bool = False
) -> str:
    """What a training came to.

    Args:
        summary: as in summary.json; parts that a run has not come to may be missing or None.
        run: its directory, for the paths.
        next_commands: what is worth typing now.
        colour: whether the text goes to a terminal that shows colours; NO_COLOR in the environment forbids it.

    Returns:
        Lines of at most 100 columns (paths and commands are never cut), without a newline at the end.
    """
    paint = _painter(colour)
    judged = summary.get("eval") or {}
    title = f"{summary['algo'].upper()} on {summary['env_id']} · seed {summary['seed']}"
    lines = ["", paint(title, BOLD), "", *_evaluations(judged, summary.get("baseline"), paint), ""]
    lines += [f"  {paint(name.ljust(15), DIM)} {value}" for name, value in _facts(summary, run)]
    if next_commands:
        lines += ["", paint("next", BOLD), *[f"  {paint(command, CYAN)}" for command in next_commands]]
    return "\n".join(lines)


def evaluation_table(
    results: Mapping[str, Mapping[str, Any] | None],
    baseline: Mapping[str, Any] | None = None,
    checkpoint: str = "",
    colour: bool = False,
) -> str:
    """What an evaluation came to, beside the random baseline.

    Args:
        results: `greedy` and `stochastic`, each mean, std, ci95, episodes, returns.
        baseline: mean, ci95, episodes of the random policy, if known.
        checkpoint: what was judged, for the first line.
        colour: as for `results_table`.

    Returns:
        Lines of at most 100 columns, without a newline at the end.
    """
    paint = _painter(colour)
    head = [paint(checkpoint, BOLD), ""] if checkpoint else []
    return "\n".join([*head, *_evaluations(results, baseline, paint)])


def results_markdown(summary: Mapping[str, Any]) -> str:
    """The results as Markdown, for Prefect's artifacts and MLflow's notes.

    Args:
        summary: as in summary.json.

    Returns:
        A heading, the table of evaluations, and the facts of the run.
    """
    lines = [
        f"## {summary['algo'].upper()} on {summary['env_id']}, seed {summary['seed']}",
        "",
        "| policy | episodes | mean return | 95 % interval | min | max |",
        "| :-- | --: | --: | :-: | --: | --: |",
    ]
    rows = _evaluation_rows(summary.get("eval") or {}, summary.get("baseline"))
    lines += [f"| {' | '.join(row)} |" for row in rows] or ["| not evaluated | | | | | |"]
    lines += ["", "| | |", "| :-- | :-- |"]
    lines += [f"| {name} | {value} |" for name, value in (*_effort(summary), ("model", _model(summary)))]
    lines.append(f"| checkpoint | `{summary.get('checkpoint') or '-'}` |")
    return "\n".join(lines) + "\n"


def agents_table(algorithms: Mapping[str, Any]) -> str:
    """What can be trained: name, paper, and what each takes, found out by building a small agent for every kind.

    Args:
        algorithms: name -> its module, with `Config` and `Agent`.

    Returns:
        Lines without a newline at the end.
    """
    lines = []
    for name, module in algorithms.items():
        paper = ((module.__doc__ or "").strip().splitlines() or [""])[0]
        actions, observations = _capabilities(module)
        lines += [name, *_wrapped("paper", paper), *_wrapped("actions", ", ".join(actions))]
        lines += _wrapped("observations", ", ".join(observations))
        lines += _wrapped("train", f"shepherd train exp={name}")
    return "\n".join(lines)


def envs_table(suites: Iterable[Any]) -> str:
    """What can be trained on.

    Args:
        suites: objects with name, extra ("" when nothing needs installing), installed, ids, note.

    Returns:
        Lines without a newline at the end.
    """
    blocks = []
    for suite in suites:
        state = "installed" if suite.installed else f"missing: pip install -e '.[{suite.extra}]'"
        lines = [f"{suite.name} · {state} · {suite.note}" if suite.note else f"{suite.name} · {state}"]
        lines += _filled(suite.ids or ("no ids",), "  ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _painter(colour: bool) -> Any:
    allowed = colour and not os.environ.get("NO_COLOR")
    return lambda text, code: f"{code}{text}{PLAIN}" if allowed else text


def _evaluations(results: Mapping[str, Any], baseline: Mapping[str, Any] | None, paint: Any) -> list[str]:
    rows = _evaluation_rows(results, baseline)
    if not rows:
        return ["  not evaluated"]
    head = ("policy", "episodes", "mean return", "95 % interval", "min", "max")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def spaced(row: Sequence[str]) -> list[str]:
        return [row[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]]

    rule = "  " + "─" * (sum(widths) + 3 * (len(widths) - 1))
    lines = ["  " + paint("   ".join(spaced(head)), DIM), paint(rule, DIM)]
    for row in rows:
        cells = spaced(row)
        if row[0] != "random baseline":
            cells[2] = paint(cells[2], GREEN)
        lines.append("  " + "   ".join(cells))
    return lines


def _evaluation_rows(results: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    named = [(mode, results.get(mode)) for mode in ("greedy", "stochastic")] + [("random baseline", baseline)]
    rows = []
    for name, result in named:
        if not result or result.get("mean") is None:
            continue
        low_high = result.get("ci95")
        interval = f"{_number(low_high[0])} to {_number(low_high[1])}" if low_high else "-"
        returns = result.get("returns")
        ends = (_number(min(returns)), _number(max(returns))) if returns else ("-", "-")
        rows.append((name, f"{result['episodes']:,}", _number(result["mean"]), interval, *ends))
    return rows


def _number(value: float) -> str:
    """A return in the environment's unit: two decimals where they say something, none where they would be noise."""
    size = abs(value)
    return f"{value:,.{0 if size >= 10_000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 4}f}"


def _facts(summary: Mapping[str, Any], run: RunDirectory) -> list[tuple[str, str]]:
    facts = [*_effort(summary), ("model", _model(summary)), ("run directory", shown(run.path))]
    checkpoint = summary.get("checkpoint")
    if checkpoint:
        facts.append(("checkpoint", shown(run.path / checkpoint)))
    if run.curve.exists():
        facts.append(("learning curve", shown(run.curve)))
    video = summary.get("video")
    if video:
        facts.append(("video", shown(run.path / video)))
    return facts


def _effort(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rate = summary["env_steps_per_s"]
    speed = f"{rate:,.0f} steps/s" if rate is not None else "not trained yet"
    return [
        ("env steps", f"{summary['env_steps']:,} in {summary['updates']:,} updates"),
        ("time", f"{duration(summary['wall_s'])} ({speed}; processor {duration(summary['cpu_s'])})"),
    ]


def _model(summary: Mapping[str, Any]) -> str:
    model = summary.get("model")
    if not model or model.get("name") is None:
        return "not registered"
    aliases = ", ".join(model.get("aliases") or ())
    return f"{model['name']} version {model['version']}" + (f" ({aliases})" if aliases else "")


def _wrapped(name: str, text: str) -> list[str]:
    lines = _filled(text.split(" "), "", " ", WIDTH - 17)
    return [f"  {name if i == 0 else '':<14} {line}" for i, line in enumerate(lines)]


def _filled(words: Iterable[str], indent: str, gap: str = "  ", width: int = WIDTH) -> list[str]:
    """Words in lines of at most `width` columns; a longer word has a line of its own."""
    lines = [""]
    for word in words:
        longer = lines[-1] + gap + word if lines[-1] else indent + word
        if len(longer) > width and lines[-1]:
            lines.append(indent + word)
        else:
            lines[-1] = longer
    return lines


def _capabilities(module: Any) -> tuple[list[str], list[str]]:
    from rlcore.types import ActionSpec, ArraySpec

    vector, choice = ArraySpec((3,), "float32"), ArraySpec((), "int64", n=3)
    two = ActionSpec("Discrete", (), "int64", (2,), (0,))
    actions = {
        "Box": ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
        "Discrete": two,
        "MultiDiscrete": ActionSpec("MultiDiscrete", (2,), "int64", (2, 3), (0, 0)),
        "MultiBinary": ActionSpec("MultiBinary", (2,), "int8", (2, 2), (0, 0)),
    }
    observations = {
        "Box": {"state": vector},
        "Discrete": {"state": choice},
        "Dict of these": {"position": vector, "room": choice},
    }
    return (
        [name for name, action in actions.items() if _can_act(module, {"state": vector}, action)],
        [name for name, obs in observations.items() if _can_act(module, obs, two)],
    )


def _can_act(module: Any, obs: Mapping[str, Any], action: Any) -> bool:
    """Whether the algorithm's agent can be built for these spaces and answers an observation."""
    import numpy as np
    import torch

    from rlcore.errors import UserError
    from rlcore.schema import build, defaults
    from rlcore.types import EnvSpec

    # Required keys are sizes and budgets, which an agent's form does not depend on.
    values = {key: 64 if value == "???" else value for key, value in defaults(module.Config).items()}
    try:
        config = build(module.Config, values | {"mlp_keys": {"encoder": list(obs)}}, "algo.")
        agent = module.Agent(config, EnvSpec("", dict(obs), action), "auto", torch.Generator())
        zeros = {key: torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)) for key, spec in obs.items()}
        agent.act(agent.initial(1), zeros, torch.ones(1, dtype=torch.bool), np.random.default_rng(0), False)
    except UserError:
        return False
    return True
