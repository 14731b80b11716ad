"""Which runs a side means."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.compare.gather import gather
from flows.tracking.backends import update_backends
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory, write_json
from tests.flows.compare.runs import finished_run, group_of

# MLflow warns about itself while it is imported and used; of our own code a warning is an error still.
pytestmark = pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")


def seeds(*words: str) -> dict[str, list[int]]:
    return {side.name: [record.seed for record in side.records] for side in gather(words, "runs")}


def test_a_side_is_a_group_a_folder_a_glob_or_a_run(root: Path) -> None:
    group_of(root / "deep", "a", [1.0, 2.0])
    group_of(root / "b", "b", [1.0, 2.0], first_seed=5)
    finished_run(root / "single", None, 9, 1.0)
    expected = {"a": [0, 1], "runs/b": [5, 6], "runs/sing*": [9]}
    assert seeds(*expected) == expected
    assert seeds("runs/deep/a_CartPole-v1_0", "runs/b") == {"runs/deep/a_CartPole-v1_0": [0], "runs/b": [5, 6]}
    assert [side.group for side in gather(["runs/b", "runs/single"], "runs")] == ["b", None]


def test_what_lies_inside_a_run_is_none_of_its_neighbours(root: Path) -> None:
    run = finished_run(root / "run", "a", 1, 1.0)
    finished_run(run.set_aside / "before", "a", 1, 1.0)
    assert [found.path for found in RunDirectory.below(root)] == [run.path]


def test_a_sweep_means_its_confirmed_runs(root: Path) -> None:
    for group, seed in (("first-winner", 1), ("first-default", 2), ("first", 3), ("other", 4)):
        group_of(root, group, [1.0], first_seed=seed)
    assert seeds("first") == {"first-winner": [1], "first-default": [2]}
    assert seeds("first", "other") == {"first": [1], "other": [4]}  # not its trials


def test_a_sweep_that_has_another_winner_now_means_the_runs_of_that_one(root: Path) -> None:
    sweep = root / "sweeps" / "first"
    for folder, group, seed in (("winner_0004", "winner", 1), ("winner_0019", "winner", 2), ("default", "default", 3)):
        group_of(sweep / folder, f"first-{group}", [1.0], first_seed=seed)
    group_of(root, "first-winner", [1.0], first_seed=5)  # trained by hand
    write_json(sweep / "sweep.json", {})
    write_json(sweep / "report.json", {"best": {"number": 19}})
    assert seeds("first") == {"first-winner": [5, 2], "first-default": [3]}
    assert seeds("runs/sweeps/first/winner_0004", "runs/sweeps/first/default") == {
        "runs/sweeps/first/winner_0004": [1],
        "runs/sweeps/first/default": [3],
    }


@pytest.mark.slow
def test_a_run_of_which_only_mlflow_knows_is_read_from_there(root: Path, home: Path) -> None:
    here = finished_run(root / "here", "a", 1, 90.0, exp_name="carts")
    gone = finished_run(root / "gone", "b", 2, 70.0, exp_name="carts")
    (direct,) = gather(["runs/gone", "runs/here"], "runs")[0].records
    for run in (here, gone):
        update_backends(run)
    gone.path.rename(root.parent / "elsewhere")
    first, second = gather(["mlflow:carts?tags.`group` = 'a'", "mlflow:carts?params.seed = '2'"], "runs")
    assert [record.place for record in first.records] == ["runs/here"]
    (read,) = second.records
    assert read.place.startswith("mlflow:")
    same = ("run_id", "status", "commit", "lines", "final", "effort", "seed", "task", "budget", "baseline", "config")
    assert {name: getattr(read, name) for name in same} == {name: getattr(direct, name) for name in same}


@pytest.mark.slow
def test_a_mistake_in_a_search_is_a_sentence(root: Path, home: Path) -> None:
    run = finished_run(root / "one", "a", 1, 90.0, exp_name="poles")
    update_backends(run)
    for word, part in (
        ("mlflow:pole", "no MLflow experiment 'pole'; did you mean 'poles'?"),
        ("mlflow:poles?seed is 3", "MLflow rejects the filter 'seed is 3'"),
        ("mlflow:poles?params.seed = '3'", "no run of Shepherd matches"),
    ):
        with pytest.raises(UserError) as told:
            gather([word, "a"], "runs")
        assert str(told.value).startswith(f"{word}: {part}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slow", "fats"], "fats: no such group in runs, sweep or folder; did you mean 'fast'?"),
        (["slow", "zzz"], "zzz: no such group in runs, sweep or folder; existing groups: fast, slow"),
        (["slow"], "slow: a comparison needs at least two sides; add another group, folder or glob"),
        (["slow", "slow"], "slow: given twice; each argument must select different runs"),
        (["slow", "runs"], "slow and runs: run runs/slow_CartPole-v1_0 belongs to both sides"),
        (["runs/slow*", "empty"], "empty: this folder contains no run; existing groups: fast, slow"),
        (["runs/slow_CartPole-v1_0", "runs/slow_CartPole-v1_1", "runs/fast_CartPole-v1_0"], "put a glob in quotes"),
    ],
)
def test_a_mistake_is_a_sentence(root: Path, words: list[str], sentence: str) -> None:
    group_of(root, "slow", [1.0, 2.0])
    group_of(root, "fast", [1.0])
    (root.parent / "empty").mkdir()
    with pytest.raises(UserError) as told:
        gather(words, "runs")
    assert sentence in str(told.value)


def test_without_any_group_it_is_said_how_to_make_one(root: Path) -> None:
    with pytest.raises(UserError, match=r"; `shepherd train … group=NAME` trains runs of a group"):
        gather(["a", "b"], "runs")


def test_a_sweep_that_was_not_confirmed_is_no_side(root: Path) -> None:
    """Trials of a sweep are a group of its name, each of another configuration."""
    group_of(root / "sweeps/first", "first", [1.0, 2.0])
    (root / "sweeps/first/sweep.json").write_text("{}")
    group_of(root, "other", [1.0, 2.0])
    for words in (["first"], ["first", "other"]):
        with pytest.raises(
            UserError,
            match=r"^first: the winner of this sweep is not confirmed, .*`shepherd sweep resume first sweep.con",
        ):
            gather(words, "runs")
    group_of(root / "sweeps/first", "first-winner", [1.0])
    group_of(root / "sweeps/first", "first-default", [2.0])
    assert [side.name for side in gather(["first"], "runs")] == ["first-winner", "first-default"]
