"""Learning curve, checked in the Matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from flows.report.curve import learning_curve, running_mean
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from tests.flows.report.test_tables import BASELINE, GREEDY, SAMPLED


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Yield the Matplotlib figures saved during the test."""
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
        log.append("metrics", policy_steps=2_000 * k, values={"Rewards/rew_avg": 50.0 * k, "Loss/value_loss": 1.0})
    for k in (2, 4):
        result = {"mean": 60.0 * k, "std": 5.0, "ci95": [60.0 * k - 9, 60.0 * k + 11], "episodes": 10}
        log.append("evaluation", policy_steps=2_000 * k, final=False, greedy=result)


def write_final_evaluation(run: RunDirectory) -> None:
    results = {
        mode: {k: v for k, v in r.items() if k != "returns"}
        for mode, r in (("greedy", GREEDY), ("stochastic", SAMPLED))
    }
    EventLog(run.events).append("evaluation", policy_steps=8_000, final=True, **results)


def visible_text(figure: Figure) -> str:
    figure.canvas.draw()
    texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return " | ".join(text.get_text() for text in texts if text.get_visible())


def test_learning_curve_plots_logged_points(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    write_final_evaluation(run)
    learning_curve(run)
    curve, final = figures[0].axes
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in curve.lines}
    assert lines[(2000, 4000, 6000, 8000, 10_000, 12_000)] == [50, 100, 150, 200, 250, 300]
    (bars,) = curve.containers
    assert list(bars.lines[0].get_ydata()) == [120, 240]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[111, 131], [231, 251]]
    assert [c.lines[0].get_ydata()[0] for c in final.containers] == [500.0, 482.9]


def test_learning_curve_has_title_labels_and_baseline(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    write_final_evaluation(run)
    learning_curve(run)
    text = visible_text(figures[0])
    for expected in (
        "PPO on CartPole-v1 · seed 42",
        "policy steps",
        "episode return",
        "random\n22.3",
        "500.0",
        "482.9",
    ):
        assert expected in text
    assert "10,000" in text  # thousands separator
    assert "final, 100 episodes\nat 8,000 policy steps" in text
    baseline = [line for line in figures[0].axes[0].lines if list(line.get_ydata()) == [22.3, 22.3]]
    assert len(baseline) == 1
    assert baseline[0].get_linestyle() == "--"


def test_learning_curve_texts_do_not_overlap(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    write_final_evaluation(run)
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
def test_learning_curve_accepts_incomplete_log(run: RunDirectory, parts: str) -> None:
    log = EventLog(run.events)
    if parts == "nothing":
        run.events.unlink()
    elif parts == "baseline":
        log.append("baseline", **BASELINE)
    elif parts in ("training", "one point"):
        for k in range(1, 2 if parts == "one point" else 9):
            log.append("metrics", policy_steps=100 * k, values={"Rewards/rew_avg": -float(k)} if k % 2 else {})
    elif parts == "no final":
        write_events(run)
    else:
        write_final_evaluation(run)
    path = learning_curve(run)
    assert path == run.media / "learning_curve.png"
    height, width, _ = matplotlib.image.imread(path).shape
    assert (width, height) == (1200, 675)
    assert [p.name for p in run.media.iterdir()] == ["learning_curve.png"]


def test_learning_curve_adds_running_mean_to_long_run(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run, windows=400)
    learning_curve(run)
    raw, mean = figures[0].axes[0].lines[:2]
    assert raw.get_alpha() < 0.5
    # the centered mean of a straight line is the line itself
    np.testing.assert_allclose(mean.get_ydata(), raw.get_ydata())
    assert "mean of 9 points" in visible_text(figures[0])


def test_running_mean_is_centred_with_shorter_ends() -> None:
    # 0; (0+3+0)/3; (0+3+0+0+6)/5; (3+0+0+6+1)/5; (0+6+1)/3; 1
    assert running_mean([0.0, 3.0, 0.0, 0.0, 6.0, 1.0], 2) == pytest.approx([0, 1, 1.8, 2.0, 7 / 3, 1])
    assert running_mean([0.0, 3.0, 0.0], 0) == [0.0, 3.0, 0.0]


def test_learning_curve_redraws_only_with_new_data(run: RunDirectory, figures: list[Figure]) -> None:
    write_events(run)
    learning_curve(run)
    EventLog(run.events).append("registered", name="ppo", version=1, aliases=[])
    assert learning_curve(run).exists()
    assert len(figures) == 1
    write_final_evaluation(run)
    learning_curve(run)
    assert len(figures[-1].axes) == 2
    run.curve.unlink()
    learning_curve(run)
    assert len(figures) == 3
