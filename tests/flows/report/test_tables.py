"""The learning curve and the tables, read back from what was drawn and printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from flows.report.curve import learning_curve, running_mean
from flows.report.tables import agents_table, envs_table, evaluation_table, results_markdown, results_table
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog

GREEDY = {"mean": 500.0, "std": 0.0, "ci95": [500.0, 500.0], "episodes": 100, "returns": [500.0] * 100}
SAMPLED = {"mean": 482.9, "std": 30.0, "ci95": [476.8, 488.2], "episodes": 100, "returns": [231.0, 500.0] * 50}
BASELINE = {"mean": 22.3, "std": 11.0, "ci95": [20.1, 24.5], "episodes": 100}
SUMMARY: dict[str, Any] = {
    "run_id": "r1",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 42,
    "env_steps": 65_536,
    "updates": 640,
    "wall_s": 75.2,
    "cpu_s": 71.0,
    "env_steps_per_s": 871.5,
    "eval": {"greedy": GREEDY, "stochastic": SAMPLED},
    "baseline": BASELINE,
    "checkpoint": "checkpoints/65536",
    "video": "media/policy.mp4",
    "model": {"name": "ppo-CartPole-v1", "version": 3, "aliases": ["challenger", "champion"]},
    "fingerprint": {},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = RunDirectory(tmp_path / "runs" / "cart")
    EventLog(run.events).append("start", run_id="r1", algo="ppo", env_id="CartPole-v1", seed=42)
    return run


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures saved while a test runs, as matplotlib objects."""
    saved: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *arguments: Any, **options: Any) -> None:
        saved.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    yield saved


def write_events(run: RunDirectory, windows: int = 6) -> None:
    log = EventLog(run.events)
    log.append("baseline", **BASELINE)
    for k in range(1, windows + 1):
        log.append("metrics", env_steps=2_000 * k, values={"Rewards/rew_avg": 50.0 * k, "Loss/value_loss": 1.0})
    for k in (2, 4):
        result = {"mean": 60.0 * k, "std": 5.0, "ci95": [60.0 * k - 9, 60.0 * k + 11], "episodes": 10}
        log.append("evaluation", env_steps=2_000 * k, final=False, greedy=result)


def judge_finally(run: RunDirectory) -> None:
    results = {
        mode: {k: v for k, v in r.items() if k != "returns"}
        for mode, r in (("greedy", GREEDY), ("stochastic", SAMPLED))
    }
    EventLog(run.events).append("evaluation", env_steps=8_000, final=True, **results)


def words(figure: Figure) -> str:
    figure.canvas.draw()
    texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return " | ".join(text.get_text() for text in texts if text.get_visible())


def test_the_curve_shows_training_and_evaluations_where_the_log_has_them(
    run: RunDirectory, figures: list[Figure]
) -> None:
    write_events(run)
    judge_finally(run)
    learning_curve(run)
    curve, final = figures[0].axes
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in curve.lines}
    assert lines[(2000, 4000, 6000, 8000, 10_000, 12_000)] == [50, 100, 150, 200, 250, 300]
    (bars,) = curve.containers
    assert list(bars.lines[0].get_ydata()) == [120, 240]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[111, 131], [231, 251]]
    assert [c.lines[0].get_ydata()[0] for c in final.containers] == [500.0, 482.9]


def test_the_curve_says_what_it_shows(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    judge_finally(run)
    learning_curve(run)
    text = words(figures[0])
    for wanted in ("PPO on CartPole-v1 · seed 42", "env steps", "episode return", "random\n22.3", "500.0", "482.9"):
        assert wanted in text
    assert "10,000" in text  # thousands
    assert "final, 100 episodes\nat 8,000 env steps" in text
    baseline = [line for line in figures[0].axes[0].lines if list(line.get_ydata()) == [22.3, 22.3]]
    assert len(baseline) == 1
    assert baseline[0].get_linestyle() == "--"


def test_legend_and_numbers_cover_no_data(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    judge_finally(run)
    learning_curve(run)
    figure = figures[0]
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    (legend,) = figure.legends
    box = legend.get_window_extent(renderer)
    title = next(t for t in figure.texts if "seed" in t.get_text()).get_window_extent(renderer)
    for axes in figure.axes:
        assert not box.overlaps(axes.get_window_extent(renderer))
    assert not box.overlaps(title)
    numbers = [t.get_window_extent(renderer) for t in figure.axes[1].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(numbers) for b in numbers[i + 1 :])
    names = [t.get_window_extent(renderer) for t in figure.axes[1].get_xticklabels()]
    assert not names[0].overlaps(names[1])


@pytest.mark.parametrize("parts", ["nothing", "baseline", "training", "one point", "no final", "final alone"])
def test_the_curve_is_drawn_from_whatever_there_is(run: RunDirectory, parts: str) -> None:
    log = EventLog(run.events)
    if parts == "nothing":
        run.events.unlink()
    elif parts == "baseline":
        log.append("baseline", **BASELINE)
    elif parts in ("training", "one point"):
        for k in range(1, 2 if parts == "one point" else 9):
            log.append("metrics", env_steps=100 * k, values={"Rewards/rew_avg": -float(k)} if k % 2 else {})
    elif parts == "no final":
        write_events(run)
    else:
        judge_finally(run)
    path = learning_curve(run)
    assert path == run.media / "learning_curve.png"
    height, width, _ = matplotlib.image.imread(path).shape
    assert (width, height) == (1200, 675)
    assert [p.name for p in run.media.iterdir()] == ["learning_curve.png"]


def test_a_long_noisy_run_is_drawn_with_its_running_mean(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run, windows=400)
    learning_curve(run)
    raw, mean = figures[0].axes[0].lines[:2]
    assert raw.get_alpha() < 0.5
    # the series is straight, and a centred mean of a straight line is the line itself
    np.testing.assert_allclose(mean.get_ydata(), raw.get_ydata())
    assert "mean of 9 points" in words(figures[0])


def test_a_running_mean_is_centred_and_shrinks_evenly_at_the_ends() -> None:
    # 0; (0+3+0)/3; (0+3+0+0+6)/5; (3+0+0+6+1)/5; (0+6+1)/3; 1
    assert running_mean([0.0, 3.0, 0.0, 0.0, 6.0, 1.0], 2) == pytest.approx([0, 1, 1.8, 2.0, 7 / 3, 1])
    assert running_mean([0.0, 3.0, 0.0], 0) == [0.0, 3.0, 0.0]


def test_the_results_stand_beside_the_random_baseline(run: RunDirectory) -> None:
    rows = [line.split() for line in results_table(SUMMARY, run).splitlines()]
    assert ["greedy", "100", "500.0", "500.0", "to", "500.0", "500.0", "500.0"] in rows
    assert ["stochastic", "100", "482.9", "476.8", "to", "488.2", "231.0", "500.0"] in rows
    assert ["random", "baseline", "100", "22.3", "20.1", "to", "24.5", "-", "-"] in rows


def test_the_results_tell_effort_model_and_where_things_are(run: RunDirectory) -> None:
    write_events(run)
    learning_curve(run)
    commands = ["shepherd enjoy runs/cart", "mlflow ui --backend-store-uri sqlite:///" + "x" * 120]
    text = results_table(SUMMARY, run, commands)
    for wanted in (
        "PPO on CartPole-v1 · seed 42",
        "65,536 in 640 updates",
        "1:15 (872 steps/s; processor 1:11)",
        "ppo-CartPole-v1 version 3 (challenger, champion)",
        " runs/cart\n",
        " runs/cart/checkpoints/65536\n",
        " runs/cart/media/learning_curve.png\n",
        " runs/cart/media/policy.mp4\n",
        *commands,
    ):
        assert wanted in text


@pytest.mark.parametrize("colour", [False, True])
def test_lines_fit_and_colour_is_an_addition_only(
    colour: bool, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = results_table(SUMMARY, run, ["shepherd enjoy runs/cart"], colour=colour)
    plain = re.sub(r"\x1b\[\d*m", "", painted)
    assert (painted != plain) == colour
    assert plain == results_table(SUMMARY, run, ["shepherd enjoy runs/cart"])
    assert max(len(line) for line in plain.splitlines()) <= 100
    monkeypatch.setenv("NO_COLOR", "1")
    assert results_table(SUMMARY, run, ["shepherd enjoy runs/cart"], colour=colour) == plain


def test_columns_are_aligned_whatever_the_numbers(run: RunDirectory) -> None:
    wild = {"mean": -123_456.7, "ci95": [-130_000.0, 0.012], "episodes": 10_000, "returns": [-1e7, 3.0]}
    lines = evaluation_table({"greedy": wild, "stochastic": SAMPLED}, BASELINE, "runs/cart").splitlines()[2:]
    head, rule, *rows = lines
    ends = [m.end() for m in re.finditer(r"episodes|mean return|95 % interval|min|max", head)]
    assert {len(line) for line in rows} == {len(head)}
    assert len(rule) == len(head)
    for row in rows:
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for end in ends)


def test_parts_that_a_run_has_not_come_to_are_said_to_be_missing(run: RunDirectory) -> None:
    empty = {"greedy": None, "stochastic": None}
    bare = SUMMARY | {"eval": empty, "baseline": {"mean": None}, "model": None, "video": None, "checkpoint": None}
    text = results_table(bare, run)
    assert "not evaluated" in text
    assert "not registered" in text
    assert "video" not in text
    assert "None" not in text
    assert "None" not in results_markdown(bare)
    skipped = {"name": None, "version": None, "aliases": []}
    assert "not registered" in results_table(SUMMARY | {"model": skipped}, run)


def test_markdown_tables_have_as_many_cells_as_their_head() -> None:
    blocks = [b.splitlines() for b in results_markdown(SUMMARY).split("\n\n") if b.startswith("|")]
    assert len(blocks) == 2
    for block in blocks:
        assert len({line.count("|") for line in block}) == 1
    assert "| greedy | 100 | 500.0 | 500.0 to 500.0 | 500.0 | 500.0 |" in blocks[0]
    assert "| random baseline | 100 | 22.3 | 20.1 to 24.5 | - | - |" in blocks[0]
    assert any("ppo-CartPole-v1 version 3" in line for line in blocks[1])


def test_agents_are_listed_with_paper_actions_and_observations() -> None:
    from rlcore.algorithms import ALGORITHMS

    text = agents_table(ALGORITHMS)
    assert "Proximal Policy Optimization" in text
    assert re.search(r"actions +Box, Discrete, MultiDiscrete, MultiBinary\n", text)
    assert re.search(r"observations +Box, Discrete, Dict of these\n", text)
    assert max(len(line) for line in text.splitlines()) <= 100


def test_an_agent_that_refuses_a_space_is_not_said_to_take_it() -> None:
    from rlcore.algorithms import ppo

    def continuous_only(config: Any, spec: Any, distribution: str, rng: Any) -> Any:
        if not spec.action.continuous:
            raise UserError("only Box")
        return ppo.Agent(config, spec, distribution, rng)

    module = SimpleNamespace(__doc__="Another: a paper.", Config=ppo.Config, Agent=continuous_only)
    assert re.search(r"actions +Box\n", agents_table({"other": module}))


def test_environments_are_listed_by_suite_with_the_missing_extra() -> None:
    here = SimpleNamespace(name="toy text", extra="", installed=True, ids=("Taxi-v4",), note="small")
    many = tuple(f"Robot{i}-v5" for i in range(40))
    absent = SimpleNamespace(name="mujoco", extra="mujoco", installed=False, ids=many, note="")
    text = envs_table([here, absent])
    assert "toy text · installed · small\n  Taxi-v4\n" in text
    assert "mujoco · missing: pip install -e '.[mujoco]'\n" in text
    assert re.findall(r"Robot\d+-v5", text) == list(many)
    assert max(len(line) for line in text.splitlines()) <= 100
