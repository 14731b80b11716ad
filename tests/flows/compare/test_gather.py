"""Selection of the runs of a side."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.compare.gather import gather
from flows.tracking.backends import update_backends
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory, write_json
from tests.flows.compare.runs import finished_run, group_of

# MLflow causes warnings when it is imported and used. Warnings of our own code are still errors.
pytestmark = pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")


def seeds(*words: str) -> dict[str, list[int]]:
    return {side.name: [record.seed for record in side.records] for side in gather(words, "runs")}


def test_gather_accepts_group_folder_glob_and_run(root: Path) -> None:
    group_of(root / "deep", "a", [1.0, 2.0])
    group_of(root / "b", "b", [1.0, 2.0], first_seed=5)
    finished_run(root / "single", None, 9, 1.0)
    expected = {"a": [0, 1], "runs/b": [5, 6], "runs/sing*": [9]}
    assert seeds(*expected) == expected
    assert seeds("runs/deep/a_CartPole-v1_0", "runs/b") == {"runs/deep/a_CartPole-v1_0": [0], "runs/b": [5, 6]}
    assert [side.group for side in gather(["runs/b", "runs/single"], "runs")] == ["b", None]


def test_below_ignores_runs_inside_run(root: Path) -> None:
    run = finished_run(root / "run", "a", 1, 1.0)
    finished_run(run.set_aside / "before", "a", 1, 1.0)
    assert [found.path for found in RunDirectory.below(root)] == [run.path]


def test_gather_sweep_selects_confirmed_runs(root: Path) -> None:
    for group, seed in (("first-winner", 1), ("first-default", 2), ("first", 3), ("other", 4)):
        group_of(root, group, [1.0], first_seed=seed)
    assert seeds("first") == {"first-winner": [1], "first-default": [2]}
    assert seeds("first", "other") == {"first": [1], "other": [4]}  # the trials are excluded


def test_gather_sweep_selects_runs_of_current_winner(root: Path) -> None:
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


@pytest.mark.parametrize("best", [7, [1], {"number": "x"}, {}])
def test_gather_names_damaged_sweep_report(root: Path, best: object) -> None:
    sweep = root / "sweeps" / "first"
    group_of(sweep / "winner_0004", "first-winner", [1.0])
    write_json(sweep / "report.json", {"best": best})
    with pytest.raises(
        UserError,
        match=r"report.json: damaged; its field 'best' does not .* a number; remove it and run",
    ):
        gather(["first-winner"], "runs")


@pytest.mark.slow
def test_gather_reads_deleted_run_from_mlflow(root: Path, home: Path) -> None:
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
def test_gather_refuses_mistakes_in_mlflow_search(root: Path, home: Path) -> None:
    run = finished_run(root / "one", "a", 1, 90.0, exp_name="poles")
    update_backends(run)
    for word, part in (
        ("mlflow:pole", "no MLflow experiment 'pole'; did you mean 'poles'?"),
        ("mlflow:poles?seed is 3", "MLflow rejects the filter 'seed is 3'"),
        ("mlflow:poles?params.seed = '3'", "no run of Shepherd matches"),
    ):
        with pytest.raises(UserError) as error:
            gather([word, "a"], "runs")
        assert str(error.value).startswith(f"{word}: {part}")


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
def test_gather_refuses_wrong_sides(root: Path, words: list[str], sentence: str) -> None:
    group_of(root, "slow", [1.0, 2.0])
    group_of(root, "fast", [1.0])
    (root.parent / "empty").mkdir()
    with pytest.raises(UserError) as error:
        gather(words, "runs")
    assert sentence in str(error.value)


def test_gather_explains_group_if_none_exists(root: Path) -> None:
    with pytest.raises(UserError, match=r"; `shepherd train … group=NAME` trains runs of a group"):
        gather(["a", "b"], "runs")


def test_gather_refuses_sweep_without_confirmation(root: Path) -> None:
    """The trials of a sweep form a group with its name, but they have different configurations."""
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
