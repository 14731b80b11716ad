"""What people look at when a run has ended: the tables at the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flows.report.command_lines import shown
from flows.report.sentences import duration, figure
from rlcore.store.directory import RunDirectory

WIDTH = 100  # columns; only paths and commands, which are to be copied whole, may be longer
BOLD, DIM, GREEN, CYAN, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[36m", "\x1b[0m"


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
        interval = f"{figure(low_high[0])} to {figure(low_high[1])}" if low_high else "-"
        returns = result.get("returns")
        ends = (figure(min(returns)), figure(max(returns))) if returns else ("-", "-")
        rows.append((name, f"{result['episodes']:,}", figure(result["mean"]), interval, *ends))
    return rows


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
    from rlcore.spec import ActionSpec, ArraySpec

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

    from rlcore.config.schema import build, defaults
    from rlcore.errors import UserError
    from rlcore.spec import EnvSpec

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
