"""Report page of a sweep: results, and pictures with the colors of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flows.report.figures import save
from flows.sweeps.page import draw, markdown, page
from flows.sweeps.plan import plan
from tests.soaking import always, heavy

pytestmark = heavy

SPACE = plan(["exp=ppo", "algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.dense_act=choice(tanh,relu)"]).space


def trial(number: int, state: str, value: float | None, lr: float, act: str, **more: Any) -> dict[str, Any]:
    params = {"algo.optimizer.lr": lr, "algo.dense_act": act}
    return {"number": number, "state": state, "params": params, "value": value, "policy_steps": 1000, **more}


TRIALS = [
    trial(0, "complete", 100.0, 1e-3, "tanh", default=True),
    trial(1, "fail", None, 1e-1, "relu", sentence="it <broke> & ended"),
    trial(2, "pruned", 20.0, 1e-5, "relu"),
    trial(3, "complete", 150.0, 1e-2, "relu"),
    trial(4, "running", None, 1e-2, "tanh"),
]
LINES = {
    0: [[(500, 60.0), (1000, 100.0)]],
    1: [[(500, 9.0)]],
    2: [[(500, 20.0)]],
    3: [[(500, 80.0), (1000, 150.0)], [(500, 70.0)]],
    4: [],
}
ABOUT = {"environment": "CartPole-v1", "algorithm": "ppo", "sampler": "tpe", "sweep.seed": "42", "commit": "c0ffee"}
STATUS: dict[str, Any] = {
    "name": "mine",
    "about": ABOUT,
    "wanted": 5,
    "trials": TRIALS,
    "saved": 800,
    "best": TRIALS[3],
    "confirmed": {
        "words": "the winner is better than the default configuration",
        "seeds": [11, 12],
        "values": {"winner": [140.0, 150.0], "default": [90.0, 95.0]},
        "better": True,
    },
    "lost": None,
}
SHARES = {"algo.optimizer.lr": 0.8, "algo.dense_act": 0.2}


def draw_trials(trials: list[dict[str, Any]]) -> list[Any]:
    return draw(trials, {t["number"]: LINES[t["number"]] for t in trials}, SPACE, SHARES if trials else {})


@pytest.mark.parametrize(
    ("trials", "stems"),
    [
        (TRIALS, ["history", "curves", "importance", "slices"]),
        (TRIALS[:1], ["history", "curves", "importance", "slices"]),
        (TRIALS[1:2], ["history", "importance", "slices"]),
        (TRIALS[4:], ["importance"]),
        ([], []),
    ],
    ids=["all", "one", "only failed", "only running", "none"],
)
def test_draw_omits_pictures_without_data(trials: list[dict[str, Any]], stems: list[str]) -> None:
    assert [picture.stem for picture in draw_trials(trials)] == stems


def test_save_writes_every_picture_format(tmp_path: Path) -> None:
    pictures = draw_trials(TRIALS)
    save(pictures, tmp_path)
    names = {
        f"{stem}.{form}" for stem in ("history", "curves", "importance", "slices") for form in ("png", "svg", "pdf")
    }
    assert {path.name for path in tmp_path.iterdir()} == names
    for picture in pictures:
        assert set(re.findall(r"#[0-9a-f]{6}\b", picture.inline)) <= {"#ffffff", "#000000"}, picture.stem


def test_draw_marks_failed_trials_and_default() -> None:
    history, curves, _, slices = draw_trials(TRIALS)
    for picture in (history, slices):  # a triangle in the color of failed trials
        assert picture.inline.count("var(--side-1)") > draw_trials([TRIALS[0], *TRIALS[2:]])[0].inline.count(
            "var(--side-1)"
        )
        assert "failed" in picture.caption
    for words in ("best, trial 3", "default", "policy steps", "greedy mean return"):
        assert words in curves.inline


@always
def test_page_is_self_contained_and_escaped() -> None:
    text = page(STATUS, "The value is a mean.", "shepherd train exp=mine_best", draw_trials(TRIALS), "<p>compared</p>")
    for words in ("better than the default configuration", "shepherd train exp=mine_best", *ABOUT, *ABOUT.values()):
        assert words in text
    assert "<li>trial 1: it &lt;broke&gt; &amp; ended" in text and "<broke>" not in text
    states = re.findall(r"<tr><td>(?:<strong>)?(\d(?: \(default\))?)(?:</strong>)?</td><td>(?:<strong>)?(\w+)", text)
    assert states == [
        ("0 (default)", "complete"),
        ("1", "failed"),
        ("2", "pruned"),
        ("3", "complete"),
        ("4", "running"),
    ]
    assert re.findall(r"<td><strong>(\d+)</strong>", text) == ["3"]  # the best
    assert not re.findall(r"(?:src|href)=['\"]?http|<script", text)  # no external resources
    assert text.count("<svg") == 4
    assert text.index("Confirmation: winner compared with default") < text.index("<p>compared</p>")


def test_page_of_interrupted_sweep_shows_stopped_trials() -> None:
    text = page(STATUS | {"go_on": "shepherd sweep resume mine"}, "The value is a mean.", "", [])
    assert "1 stopped" in text and "<td>stopped</td>" in text and "running" not in text
    assert ">dense_<wbr>act</th>" in text


def test_page_of_new_sweep_has_no_pictures() -> None:
    new_sweep = STATUS | {"trials": [], "saved": 0, "best": None, "confirmed": None}
    text = page(new_sweep, "The value is a mean.", "", [])
    assert "0 of 5" in text and "<svg" not in text and "Confirmation" not in text


def test_markdown_names_best_values() -> None:
    text = markdown(STATUS, "The value is a mean.", "shepherd train exp=mine_best")
    assert "| `algo.optimizer.lr` | 0.01 |" in text
    assert "- environment: CartPole-v1" in text
    assert "pruning saved: 800 policy steps, 14%" in text  # 800 of 5,000 taken and 800 saved policy steps


def test_draw_importance_names_its_method() -> None:
    importance = next(picture for picture in draw_trials(TRIALS) if picture.stem == "importance")
    assert "PED-ANOVA" in importance.caption and "variance" not in importance.caption + importance.inline
