"""Written and printed reports: self-contained page, figures, tables, JSON."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import pytest

from flows.cli import main as cli
from flows.compare.report import report
from tests.flows.compare.conftest import empty_root
from tests.flows.compare.runs import WHOLE, finished_run, group_of
from tests.flows.compare.test_comparison import HIGH, LOW
from tests.soaking import always, heavy

pytestmark = heavy

PICTURES = {"curve_steps", "curve_time", "curve_cpu", "aggregates", "improvement", "profile"}


class Page(HTMLParser):
    """Parsed page: tags with attributes, and text. Checks that tags are nested correctly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report on two groups and an interrupted run. The folder `again` next to it contains the same report again."""
    with empty_root(tmp_path_factory.mktemp("compared")) as root:
        group_of(root, "a<b>&c", LOW)
        group_of(root, "tuned", HIGH, algo={"optimizer": {"lr": 0.5}})
        finished_run(root / "cut", "tuned", 99, 1.0, status="interrupted")
        for name in ("out", "again"):
            report(["a<b>&c", "tuned"], name, "runs")
    return root.parent / "out"


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page((out / "index.html").read_text())


def test_report_page_is_self_contained(out: Path, page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert str(value).startswith("#"), (name, value)  # a part of the same figure
    assert not re.search(r"url\((?!#)|@import", (out / "index.html").read_text())
    assert len((out / "index.html").read_bytes()) < 400_000


@always
def test_report_page_starts_with_verdict(page: Page) -> None:
    text = " ".join(page.text.split())
    for part in (
        "tuned is significantly better than a<b>&c on CartPole-v1.",
        "Learning curves",
        "CartPole-v1: return by policy steps",
        "CartPole-v1: return by wall time",
        "Probability of improvement",
        "optimality gap",
        "Performance profile",
        "Steps to a threshold",
        "Cost of a run",
        "algo.optimizer.lr 0.001 0.5",
        "Excluded runs:",
        "interrupted",
        "arXiv:2108.13264",
    ):
        assert part in text, part
    assert text.index("is significantly better than") < text.index("Learning curves")


def test_report_figures_use_page_colors(out: Path) -> None:
    text = (out / "index.html").read_text()
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) == len(PICTURES)
    for svg in drawn:
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#ffffff", "#000000"}, "a fixed color"
        assert "var(--ink)" in svg
        assert 'role="img"' in svg.partition(">")[0] and " width=" not in svg.partition(">")[0]
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", light))
    assert used - {"--font"} <= set(re.findall(r"(--[a-z0-9-]+):", dark))


def test_report_writes_png_figures(out: Path) -> None:
    assert {path.stem for path in out.glob("*.png")} == PICTURES
    for path in out.glob("*.png"):
        picture = matplotlib.image.imread(path)
        assert picture.shape[1] > 1000 and picture[..., :3].std() > 0.01


def test_report_writes_svg_and_pdf_figures(out: Path) -> None:
    for form in ("svg", "pdf"):
        assert {path.stem for path in out.glob(f"*.{form}")} == PICTURES
    for path in out.glob("*.svg"):
        tree = ElementTree.parse(path)
        assert tree.getroot().get("width", "").endswith("pt")  # fixed size
        assert "var(" not in path.read_text()  # fixed colors, independent of a page
    for path in out.glob("*.pdf"):
        assert path.read_bytes().startswith(b"%PDF-") and b"/Type /Page" in path.read_bytes()


def test_report_tables_contain_all_runs_and_points(out: Path) -> None:
    with open(out / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    assert [float(row["value"]) for row in runs if row["side"] == "a<b>&c"] == LOW
    assert [(row["counted"], row["value"], row["status"]) for row in runs if row["run"] == "runs/cut"] == [
        ("false", "", "interrupted")
    ]
    assert len(runs) == 21 and runs[0]["budget"] == str(WHOLE)
    with open(out / "points.csv", newline="") as file:
        points = [row for row in csv.DictReader(file) if row["run"] == "runs/tuned_CartPole-v1_0"]
    evaluations = [row for row in points if row["metric"] == "Evaluation/greedy_mean"]
    assert [int(row["policy_steps"]) for row in evaluations] == [WHOLE // 4 * stage for stage in (1, 2, 3, 4)]
    assert [float(row["wall_s"]) for row in evaluations] == [WHOLE / 4000 * stage for stage in (1, 2, 3, 4)]
    assert float(evaluations[-1]["cpu_s"]) == pytest.approx(WHOLE / 900)
    assert float(evaluations[-1]["value"]) == HIGH[0]
    assert len(points) == 8


def test_report_is_deterministic(out: Path) -> None:
    for path in out.iterdir():
        assert path.read_bytes() == (out.parent / "again" / path.name).read_bytes(), path.name


def test_report_draws_curves_per_environment_and_overall(root: Path) -> None:
    for name, values in (("low", LOW), ("high", HIGH)):
        group_of(root, name, values[:3])
        group_of(root, name, [value - 300 for value in values[:3]], env="Acrobot-v1", random=-500.0)
    messages: list[str] = []
    result = report(["low", "high"], "out", "runs", tell=messages.append)
    stems = [picture.stem for picture in result.pictures]
    assert messages[-len(stems) :] == [f"picture drawn: out/{stem}.png" for stem in stems]
    assert stems == [
        "curve_all",
        *(f"curve_{against}_{task}" for task in (1, 2) for against in ("steps", "time", "cpu")),
        *("aggregates", "improvement", "profile"),
    ]
    assert "all environments (scores)" in Path("out/index.html").read_text()


def test_compare_command_prints_verdict_and_page(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group_of(root, "low", LOW[:3])
    group_of(root, "high", HIGH)
    assert cli.main(["compare", "low", "high", "--threshold", "60"]) == 0
    captured = capsys.readouterr()
    # On a slow machine there are progress lines.
    assert [line for line in captured.err.splitlines() if not line.startswith("picture drawn: ")] == []
    lines = captured.out.splitlines()
    assert lines[1] == "No ranking of low and high: low has 3 finished seeds; a ranking needs 10."
    assert "  shepherd train exp=ppo env.id=CartPole-v1 seed=3,4,5,6,7,8,9 group=low" in lines
    assert lines[-1] == "page with pictures and figures: report/index.html"
    assert cli.main(["compare", "low", "high", "--out", "other", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("other/compare.json").read_text())
    assert printed["verdict"]["ranked"] is False
    assert printed["sides"]["high"]["values"] == {"CartPole-v1": HIGH}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare low hihg", "hihg: no such group in runs, sweep or folder; did you mean 'high'?"),
        ("compare low high --out runs/file", "--out runs/file: is a file; give a folder"),
        ("compare low high --runs elsewhere", "low: no such group in elsewhere, sweep or folder"),
        ("compare low high --threshold much", "argument --threshold: much: must be a finite number"),
    ],
)
def test_compare_refuses_mistake_with_one_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    for name in ("low", "high"):
        group_of(root, name, LOW[:2])
    (root / "file").write_text("")
    assert cli.main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"shepherd: {sentence}") and captured.err.count("\n") == 1
    assert not Path("report").exists()
