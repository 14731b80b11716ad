"""The picture of the pipeline is of today's dvc.yaml and today's tasks."""

from __future__ import annotations

from pathlib import Path

from flows.picture import main, stages, tasks

ROOT = Path(__file__).resolve().parents[2]


def test_the_flow_has_a_task_for_every_stage_in_the_same_order() -> None:
    names = [stage.name for stage in stages(ROOT / "dvc.yaml")]
    assert names == [task for task in tasks() if task in names]


def test_every_stage_reads_only_what_an_earlier_one_writes() -> None:
    written: set[str] = set()
    for stage in stages(ROOT / "dvc.yaml"):
        assert set(stage.reads) <= written
        assert bool(stage.reads) == bool(written)
        written |= set(stage.writes)


def test_the_picture_in_the_docs_is_up_to_date(tmp_path: Path) -> None:
    main(tmp_path / "pipeline.svg")
    drawn, shown = (tmp_path / "pipeline.svg").read_text(), (ROOT / "docs/images/pipeline.svg").read_text()
    assert drawn == shown, "run: python -m flows.picture docs/images/pipeline.svg"
