"""The page on a sweep: it holds what came of it, and pictures that are PNGs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flows.sweeps import pictures
from flows.sweeps.page import markdown, page
from flows.sweeps.settings import plan

SPACE = plan(["exp=ppo", "algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.dense_act=choice(tanh,relu)"]).space


def trial(number: int, state: str, value: float | None, lr: float, act: str, **more: Any) -> dict[str, Any]:
    params = {"algo.optimizer.lr": lr, "algo.dense_act": act}
    return {"number": number, "state": state, "params": params, "value": value, "policy_steps": 1000, **more}


TRIALS = [
    trial(0, "complete", 100.0, 1e-3, "tanh"),
    trial(1, "fail", None, 1e-1, "relu", sentence="it <broke> & ended"),
    trial(2, "pruned", 20.0, 1e-5, "relu"),
    trial(3, "complete", 150.0, 1e-2, "relu"),
]
STATUS: dict[str, Any] = {
    "name": "mine",
    "wanted": 4,
    "trials": TRIALS,
    "saved": 800,
    "lost": None,
    "best": TRIALS[3],
    "confirmed": {
        "words": "the winner is better than the default configuration",
        "seeds": [11, 12],
        "values": {"winner": [140.0, 150.0], "default": [90.0, 95.0]},
    },
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("trials", [TRIALS, TRIALS[:1], TRIALS[1:2], []], ids=["all", "one", "only-failed", "none"])
def test_pictures_can_be_drawn_of_whatever_there_is(trials: list[dict[str, Any]]) -> None:
    for picture in (pictures.history(trials), pictures.slices(trials, SPACE)):
        assert picture.startswith(PNG) and len(picture) > 3000


def test_the_page_is_whole_and_nothing_of_a_trial_is_markup(tmp_path: Path) -> None:
    text = page(STATUS, "The value is a mean.", "shepherd train exp=mine_best", {"history": PNG})
    assert "better than the default configuration" in text
    assert "shepherd train exp=mine_best" in text
    assert "it &lt;broke&gt; &amp; ended" in text and "<broke>" not in text
    rows = re.findall(r"<tr class=(\w+)", text)
    assert rows == ["complete", "fail", "pruned", "best"]
    assert not re.findall(r"(?:src|href)=['\"]?http", text)  # nothing from elsewhere
    assert re.search(r"<td>11</td><td>140.0</td><td>90.0</td>", text)


def test_the_short_form_names_the_best_values() -> None:
    text = markdown(STATUS, "The value is a mean.", "shepherd train exp=mine_best")
    assert "| `algo.optimizer.lr` | 0.01 |" in text
    assert "pruning saved: 800 policy steps, 17%" in text  # 800 of the 4,000 that were taken and these
