"""Damaged files of a run: each reader reports them in one sentence with file and fix, or works without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.evaluation_commands import locate
from flows.compare.records import from_directory
from flows.config.compose import compose_existing
from flows.runs.milestones import find_stale, has_dataset, is_over, note_baseline
from flows.runs.original import Original, _find
from flows.stages.collect import collect
from flows.stages.summary import summarise
from rlcore.errors import RunError, UserError
from rlcore.evaluation.final import final_evaluation
from rlcore.evaluation.policy import load_policy
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import FORMAT, RunDirectory, write_json
from rlcore.store.events import read_events
from rlcore.store.run_files import read_mapping, read_record
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

FILES = [
    "config.yaml",
    "config_overrides.txt",
    "run.json",
    "env_card.json",
    "events.jsonl",
    "lineage.json",
    "summary.json",
    "evaluations/64.json",
    "checkpoints/64/manifest.json",
    "checkpoints/64/bookkeeping/state.json",
    "checkpoints/names.json",
    "dataset/manifest.json",
]


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("missing")


def change_type(value: Any) -> Any:
    """Return a value in which texts are numbers, numbers are texts, and lists are mappings."""
    if isinstance(value, dict):
        return {key: change_type(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return {"a": 1}
    return 7 if isinstance(value, str) else "x"


def change_types(path: Path) -> None:
    """Change the types of all values in a JSON file, or in a JSON file with one mapping in each line."""
    if path.suffix == ".jsonl":
        events = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(change_type(e) | {"kind": e["kind"]}) + "\n" for e in events))
    elif path.suffix == ".json":
        path.write_text(json.dumps(change_type(json.loads(path.read_text()))))


def cut_after_first_group(path: Path) -> None:
    """Cut a YAML file so that it is still a mapping with the keys `algo` and `env`."""
    if path.suffix == ".yaml":
        content = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({key: content[key] for key in ("algo", "env", "run_name")}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "{}": lambda path: path.write_text("{}"),
    "[]": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null\n"),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{[: \x80" * 10),
    "deep": lambda path: path.write_text("[" * 10_000),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "directory": make_directory,
    "loop": make_loop,
    "no target": link_to_nothing,
    "types": change_types,
    "groups": cut_after_first_group,
}
READERS: dict[str, Callable[[RunDirectory], object]] = {
    "config_of": config_of,
    "read_card": lambda run: run.read_card(),
    "read_baseline": lambda run: run.read_baseline(),
    "read_summary": lambda run: run.read_summary(),
    "read_identity": lambda run: run.read_identity(),
    "read_overrides": lambda run: run.read_overrides(),
    "name": lambda run: run.name,
    "read_events": lambda run: list(read_events(run.events)),
    "find_stale": find_stale,
    "is_over": is_over,
    "has_dataset": has_dataset,
    "compose_existing": lambda run: compose_existing(run.config, ["metric.log_every=7"]),
    "summarise": summarise,
    "record": from_directory,
    "reproduce": lambda run: _find(str(run.path), run.path),
    "choose": checkpoint.choose,
    "locate": lambda run: locate(str(run.path)),
    "load_policy": lambda run: load_policy(run.path),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a run that was trained, evaluated and summarized."""
    run = prepare(tmp_path_factory.mktemp("whole") / "run", total_steps=64)
    run.overrides.write_text("exp=ppo\n")
    collect(run)
    session = RunTrainer(run)
    session.advance(lambda progress: None)
    session.save()
    session.close()
    final_evaluation(run)
    summarise(run)
    return run


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_readers_report_damaged_file_in_one_sentence(
    whole: RunDirectory, tmp_path: Path, name: str, damage: str
) -> None:
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "run"))
    DAMAGES[damage](run.path / name)
    for reader, read in READERS.items():
        try:
            read(run)
        except (UserError, RunError) as error:
            message = str(error)
            assert "\n" not in message and len(message) < 600, (reader, message)
            assert Path(name).name in message or "checkpoint" in message, (reader, message)


def test_damaged_dataset_is_collected_again(whole: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "run"))
    assert has_dataset(run)
    manifest = run.dataset / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"result"', b'"rEsult"'))
    assert not has_dataset(run) and run.read_baseline() is None
    note_baseline(run)
    collect(run)
    assert has_dataset(run)
    assert [event["kind"] for event in read_events(run.events)].count("baseline") == 1


def test_summarise_reads_last_evaluation_from_log(whole: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "run"))
    (run.evaluations / "64.json").write_text("{}")
    kept = {key: value for key, value in whole.read_summary()["eval"]["greedy"].items() if key != "returns"}
    assert kept.items() <= summarise(run)["eval"]["greedy"].items()


def test_read_record_names_field_of_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"eval": {"greedy": {"mean": 1.0, "returns": [1, "x"]}}, "other": 3}')
    with pytest.raises(UserError, match=r"^.*/a.json: damaged, eval.greedy.returns has a wrong type; fix it$"):
        read_record(tmp_path / "a.json", "fix it")


def test_write_json_names_folder_in_place_of_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r": is a folder, but must be a file; move the folder away$"):
        write_json(tmp_path, {})


def test_original_names_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "original.json").write_text("{}")
    with pytest.raises(UserError, match="is missing; remove the folder"):
        Original.of(RunDirectory(tmp_path))


def test_read_mapping_names_missing_key(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"one": {"two": 0}}')
    assert read_mapping(tmp_path / "a.json", "fix it", ("one.two",)) == {"one": {"two": 0}}
    with pytest.raises(UserError, match=r"^.*/a.json: damaged, one.three is missing; fix it$"):
        read_mapping(tmp_path / "a.json", "fix it", ("one.three",))


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (None, "was written by Shepherd 0.1.0, which this version cannot read; train again with this version"),
        (9, r"was written by a newer version of Shepherd \(format 9, this version reads 2\); use the newer version"),
    ],
)
def test_run_directory_refuses_other_versions(tmp_path: Path, number: int | None, reason: str) -> None:
    run = prepare(tmp_path / "run")
    assert RunDirectory.existing(run.path).read_identity()["format"] == FORMAT
    identity = {key: value for key, value in run.read_identity().items() if key != "format"}
    write_json(run.identity, identity if number is None else identity | {"format": number})
    for read in (run.read_identity, lambda: RunDirectory.existing(run.path)):
        with pytest.raises(UserError, match=f"^{run.path}: this run {reason}$"):
            read()
