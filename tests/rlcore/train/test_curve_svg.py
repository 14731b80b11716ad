from __future__ import annotations

import math
from xml.etree import ElementTree

from rlcore.train.curve_svg import curve_svg
from rlcore.train.until import Result

SVG = "{http://www.w3.org/2000/svg}"


def test_curve_has_line_of_training_and_mark_for_each_evaluation() -> None:
    training = [(100.0, 0.0), (200.0, 10.0), (300.0, math.nan), (400.0, 20.0)]
    root = ElementTree.fromstring(curve_svg(training, {200: {"mean": 5.0, "ci95": [4.0, 6.0]}, 400: {"mean": 20.0}}))
    (line,) = root.findall(f"{SVG}polyline")
    (first, middle, last) = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert first[0] < middle[0] < last[0]
    assert first[1] > middle[1] > last[1]  # y grows downwards
    assert abs((first[1] + last[1]) / 2 - middle[1]) < 0.11  # 10 is halfway from 0 to 20
    marks = [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in root.findall(f"{SVG}circle")]
    assert marks[1] == last
    assert marks[0][0] == middle[0]


def test_curve_of_equal_values_is_drawn() -> None:
    root = ElementTree.fromstring(curve_svg([(0.0, 7.0)], {}))
    assert "7" in [text.text for text in root.findall(f"{SVG}text")]


def test_curve_without_values_is_empty() -> None:
    assert curve_svg([(100.0, math.nan)], {}) == ""


def test_interval_with_infinite_end_stays_in_picture() -> None:
    root = ElementTree.fromstring(curve_svg([(0.0, 1.0)], {10: {"mean": 2.0, "ci95": [1.5, math.inf]}}))
    assert "inf" not in ElementTree.tostring(root).decode()


def test_result_shows_reason_and_curve() -> None:
    result = Result(
        "Rewards/rew_avg < 3", {100: {"Rewards/rew_avg": 1.0}, 200: {"Loss/value_loss": 4.0}}, {200: {"mean": 2.5}}
    )
    shown = result._repr_html_()
    assert shown.startswith("<div>Rewards/rew_avg &lt; 3 at 200 policy steps · last evaluation 2.5</div><svg ")
    ElementTree.fromstring(shown[shown.index("<svg") :])
