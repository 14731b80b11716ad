"""Stop conditions in a config: defaults, translation of older keys, users' classes, names of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore import plugins
from rlcore.config.stop import EVALUATION_RETURN, read_conditions, translate_early_stop
from rlcore.errors import UserError
from rlcore.run_config import build_config
from tests.runs import values

TARGET = {"upper_bound": {"metric": EVALUATION_RETURN, "value": 475.0}}


def test_read_conditions_adds_defaults() -> None:
    stated = [{"plateau": {"metric": "updates"}}, {"all": [{"stops_decreasing": {"metric": "updates"}}]}]
    assert read_conditions(stated) == (
        {"plateau": {"metric": "updates", "patience": 5, "rtol": 1e-3}},
        {"all": [{"stops_decreasing": {"metric": "updates", "patience": 5, "min_delta": 0.0}}]},
    )


@pytest.mark.parametrize(
    ("older", "stop", "translated"),
    [
        ({"target_return": 475, "patience": None, "min_delta": 0.0}, [], [TARGET]),
        ({"target_return": None, "patience": None}, [TARGET], [TARGET]),
        ({"target_return": 475}, [{"upper_bound": {"metric": EVALUATION_RETURN, "value": 9.0}}], [TARGET]),
        (
            {"target_return": 475},
            [{"upper_bound": {"metric": "updates", "value": 9.0}}],
            [{"upper_bound": {"metric": "updates", "value": 9.0}}, TARGET],
        ),
    ],
    ids=["alone", "null", "replaces", "adds"],
)
def test_translate_early_stop_adds_conditions(older: Any, stop: Any, translated: Any) -> None:
    assert translate_early_stop({"seed": 1, "early_stop": older, "stop": stop}) == {"seed": 1, "stop": translated}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Solved:\n    def __init__(self, target): ...\n    def __call__(self, metrics): ...\nclass Mute: ...\n"
    (tmp_path / "solved_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "solved_plugin")


@pytest.mark.usefixtures("plugin")
def test_read_conditions_checks_arguments_of_class() -> None:
    condition = {"_target_": "solved_plugin:Solved", "target": 3}
    assert read_conditions([condition]) == (condition,)
    with pytest.raises(
        UserError, match=r"stop\[0\]._target_=solved_plugin:Solved: .* unexpected keyword argument 'tar'"
    ):
        read_conditions([{"_target_": "solved_plugin:Solved", "target": 1, "tar": 3}])
    with pytest.raises(UserError, match=r"_target_=solved_plugin.Mute: must be a class with a method __call__"):
        read_conditions([{"_target_": "solved_plugin.Mute"}])


@pytest.mark.parametrize(("metric", "refused"), [("Rewards/rew_avg", True), (EVALUATION_RETURN, False)])
def test_save_last_false_needs_conditions_on_evaluations(metric: str, refused: bool) -> None:
    keys = {"checkpoint__save_last": False, "stop": [{"upper_bound": {"metric": metric, "value": 1}}]}
    tree = values("CartPole-v1", 1000, **keys)
    if not refused:
        build_config(tree)
        return
    with pytest.raises(UserError, match=r"checkpoint.save_last=false: .* stop\[0\].upper_bound.metric"):
        build_config(tree)
