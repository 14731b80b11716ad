"""Alias `champion` in an SQLite store: history, promotion, rollback, and the output of `shepherd registry`."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows.cli import main as cli
from flows.cli import registry as registry_command
from flows.registry import champions
from flows.runs.params import set_aside
from flows.settings import tracking_uri
from flows.stages.register_model import register_model
from flows.tracking.mlflow_store import connect
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import checkpointed_run, evaluations, named
from tests.processes import at_once, digest_of
from tests.soaking import always, heavy

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]


@pytest.fixture(scope="module")
def store_and_runs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """Yield a store with model "dynasty", whose three versions return 100, 200 and 300, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("dynasty")
    runs = [checkpointed_run(folder / f"run-{i}", f"dynasty-{i}", weights=i) for i in range(3)]
    means = {digest_of(run): 100.0 * (i + 1) for i, run in enumerate(runs)}
    with pytest.MonkeyPatch.context() as patch:
        evaluations(patch, lambda digest, episode: means[digest] + episode % 3)
        for run in runs:
            register_model(named(run, "dynasty"))
    with closing(sqlite3.connect(":memory:")) as kept, closing(sqlite3.connect(home / ".shepherd/mlflow.db")) as store:
        store.backup(kept)
        yield kept, folder


@pytest.fixture
def dynasty(home: Path, store_and_runs: tuple[sqlite3.Connection, Path]) -> str:
    """Return the model's name, with the store reset to its initial content."""
    with closing(sqlite3.connect(home / ".shepherd/mlflow.db")) as store:
        store_and_runs[0].backup(store)
    return "dynasty"


@pytest.fixture
def runs(store_and_runs: tuple[sqlite3.Connection, Path], tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of the model's runs, and restore it after the test."""
    shutil.copytree(store_and_runs[1], tmp_path / "kept")
    yield store_and_runs[1]
    shutil.rmtree(store_and_runs[1])
    shutil.move(tmp_path / "kept", store_and_runs[1])


def client() -> MlflowClient:
    return connect(tracking_uri())


def champion(name: str) -> str:
    return str(client().get_model_version_by_alias(name, "champion").version)


def steps(name: str) -> list[tuple[str, str | None, str]]:
    return [(move.version, move.before, move.how) for move in champions.history(client(), name)]


def test_gate_records_each_champion_with_reason(dynasty: str) -> None:
    assert steps(dynasty) == [("1", None, "gate"), ("2", "1", "gate"), ("3", "2", "gate")]
    reasons = [move.why for move in champions.history(client(), dynasty)]
    assert "beats the random baseline (22.0)" in reasons[0]
    assert "beats champion version 1" in reasons[1]
    assert [client().get_model_version(dynasty, str(i)).tags["decision"] for i in (1, 2, 3)] == reasons
    tags = client().get_registered_model(dynasty).tags
    assert sorted(tags) == ["champion.0001", "champion.0002", "champion.0003"]
    assert tags["champion.0002"].startswith("version 2 after 1 | gate by ")


@always
def test_rollback_restores_previous_champions_until_the_first(dynasty: str) -> None:
    for expected in ("2", "1"):
        assert champions.rollback(client(), dynasty).version == expected == champion(dynasty)
    with pytest.raises(UserError, match="version 1 is its first champion; .*promote .* 3`"):
        champions.rollback(client(), dynasty)
    # The version before a promotion is the champion that the rollbacks left.
    champions.promote(client(), dynasty, "3", "after all")
    assert champions.rollback(client(), dynasty).version == "1"
    assert steps(dynasty)[3:] == [
        ("2", "3", "rollback"),
        ("1", "2", "rollback"),
        ("3", "1", "promote"),
        ("1", "3", "rollback"),
    ]


def test_rollback_skips_deleted_versions(dynasty: str) -> None:
    client().delete_model_version(dynasty, "2")
    assert champions.rollback(client(), dynasty).version == "1"


def test_rollback_returns_to_alias_moved_in_mlflow(dynasty: str) -> None:
    client().set_registered_model_alias(dynasty, "champion", "1")
    champions.promote(client(), dynasty, "2")
    assert champions.rollback(client(), dynasty).version == "1"


def test_rollback_restores_deleted_alias(dynasty: str) -> None:
    client().delete_registered_model_alias(dynasty, "champion")
    assert champions.rollback(client(), dynasty).version == "3"


def test_history_ignores_and_keeps_foreign_tag(dynasty: str) -> None:
    client().set_registered_model_tag(dynasty, "champion.0003", "mine")
    champions.promote(client(), dynasty, "1")
    assert client().get_registered_model(dynasty).tags["champion.0003"] == "mine"
    assert steps(dynasty) == [("1", None, "gate"), ("2", "1", "gate"), ("1", "3", "promote")]
    assert champions.rollback(client(), dynasty).version == "3"


def test_history_omits_promotion_interrupted_before_alias(dynasty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr("mlflow.MlflowClient.set_registered_model_alias", interrupt)
        champions.promote(client(), dynasty, "1")
    assert champion(dynasty) == "3"
    assert steps(dynasty)[-1] == ("3", "2", "gate")
    assert champions.rollback(client(), dynasty).version == "2"
    assert champions.promote(client(), dynasty, "1").before == "2"
    assert champions.rollback(client(), dynasty).version == "2"


def test_register_model_keeps_decision_after_kill(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (checkpointed_run(tmp_path / str(i), f"cut-{i}", weights=700 + i) for i in range(2))
    evaluations(monkeypatch, lambda digest, episode: (100.0 if digest == digest_of(first) else 200.0) + episode % 3)
    register_model(named(first, "gate-cut"))
    set_tag = "mlflow.MlflowClient.set_model_version_tag"
    real = client().__class__.set_model_version_tag

    def interrupt_at_decision(self: MlflowClient, name: str, version: str, key: str, value: str) -> None:
        if key == "decision":
            raise KeyboardInterrupt
        real(self, name, version, key, value)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(set_tag, interrupt_at_decision)
        register_model(named(second, "gate-cut"))
    assert champion("gate-cut") == "2"
    assert "beats champion version 1" in register_model(named(second, "gate-cut"))["decision"]
    assert steps("gate-cut") == [("1", None, "gate"), ("2", "1", "gate")]


def test_registry_list_shows_versions_and_champion_history(dynasty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["registry", "promote", dynasty, "2", "--why", "steadier on the robot"]) == 0
    assert capsys.readouterr().out == f"{dynasty}: champion is version 2, was version 3 (steadier on the robot)\n"
    assert cli.main(["registry", "list", dynasty]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows[:3]] == [[dynasty, "3"], [dynasty, "2"], [dynasty, "1"]]
    columns = {title: head.index(title) for title in ("aliases", "decision", "registered", "run directory")}
    assert [row[columns["aliases"] :].split("  ")[0] for row in rows[:3]] == ["challenger", "champion", "-"]
    assert rows[0][columns["decision"] :].startswith("beats version 2: +100.0 [100.0, 100.0]")
    assert rows[2][columns["decision"] :].startswith("beats random baseline: +79.0 [")
    assert [row.rsplit("-", 1)[-1] for row in rows[:3]] == ["2", "1", "0"]
    assert [line.split()[3] for line in rows[5:]] == ["2", "3", "2", "1"]
    assert rows[5].endswith("steadier on the robot")


def test_registry_list_shows_set_aside_run_directory(
    dynasty: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(runs / "run-2")
    set_aside(run)  # as if another run started in its directory
    assert cli.main(["registry", "list", dynasty]) == 0
    newest = capsys.readouterr().out.splitlines()[1]
    assert newest.endswith(f"run-2/set_aside/{run.read_identity()['run_id']}")


def test_registry_list_marks_foreign_models_and_missing_runs(
    dynasty: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "run-1").rename(runs / "elsewhere")
    client().create_registered_model(f"foreign to {dynasty}")
    client().create_model_version(f"foreign to {dynasty}", "file:///nowhere")
    assert cli.main(["registry"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(f"{dynasty} ")]) == 3
    assert [line for line in lines if line.endswith("run-1 (gone)") and dynasty in line]
    foreign = next(line for line in lines if line.startswith("foreign"))
    assert foreign.endswith("not of this project")


@always
def test_registry_mistakes_exit_with_code_2(dynasty: str, capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = {
        ("promote", dynasty[:-1], "2"): f"no model '{dynasty[:-1]}'; did you mean '{dynasty}'?",
        ("rollback", dynasty[:-1]): f"did you mean '{dynasty}'?",
        ("list", dynasty[:-1]): f"did you mean '{dynasty}'?",
        ("promote", dynasty, "9"): f"{dynasty} version 9: {dynasty} has no such version or alias; existing: "
        "@challenger, @champion, /1, /2, /3",
        ("promote", dynasty, "best"): f"{dynasty} version best: {dynasty} has no such",
        ("promote", dynasty, "3"): "version 3: is already the champion",
    }
    before = steps(dynasty)
    for words, message in mistakes.items():
        assert cli.main(["registry", *words]) == 2
        output = capsys.readouterr().err
        assert message in output and output.startswith("shepherd: ") and output.count("\n") == 1
    assert steps(dynasty) == before


def test_promote_refuses_version_of_another_program(home: Path) -> None:
    client().create_registered_model("theirs")
    client().create_model_version("theirs", "file:///nowhere")
    with pytest.raises(UserError, match="not registered by Shepherd"):
        champions.promote(client(), "theirs", "1")
    with pytest.raises(UserError, match="cannot roll back, because it has no champion"):
        champions.rollback(client(), "theirs")


def test_concurrent_promotions_are_recorded_in_sequence(dynasty: str) -> None:
    command = "from flows.cli.main import main; assert main(['registry', 'promote', {!r}, {!r}]) == 0"
    programs = [command.format(dynasty, version) for version in ("1", "2")]
    assert at_once("import mlflow, flows.cli.registry", *programs) == [0, 0]
    moves = champions.history(client(), dynasty)
    assert [move.before for move in moves[1:]] == [move.version for move in moves[:-1]]
    assert sorted(move.version for move in moves[3:]) == ["1", "2"]
    assert champion(dynasty) == moves[-1].version


def test_registry_list_reports_unreachable_server(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert cli.main(["registry", "list"]) == 2
    assert "MLFLOW_TRACKING_URI=http://127.0.0.1:9: no MLflow server answers there" in capsys.readouterr().err


def test_list_versions_explains_empty_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/empty.db")
    registry_command.list_versions()
    assert "no model is registered yet; `shepherd train" in capsys.readouterr().out


def test_decision_is_undecided_while_tags_are_incomplete() -> None:
    from mlflow.entities.model_registry import ModelVersion, ModelVersionTag

    def decision(**tags: str) -> str:
        return registry_command._decision(
            ModelVersion("ppo", "1", 0, tags=[ModelVersionTag(key, value) for key, value in tags.items()])
        )

    assert decision() == decision(difference="3.0") == decision(difference="3.0", difference_low="1.0") == "undecided"
    complete = {"difference": "3.0", "difference_low": "1.0", "difference_high": "5.0", "compared_with": "the champion"}
    assert decision(**complete) == "undecided"
    assert decision(**complete, decision="Champion: beats it") == "beats champion: +3.00 [1.00, 5.00]"
    short = complete | {"undecided": "true", "decision": "Not champion: undecided against it"}
    assert decision(undecided="true", decision="Not champion: undecided against it") == "undecided"
    assert decision(**short) == "undecided against champion: +3.00 [1.00, 5.00]"
