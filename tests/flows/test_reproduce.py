"""`shepherd reproduce`: runs and model versions are trained again, and differences are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main as cli
from flows.runs.original import NOTE, VERDICT, Original, differences_here, restore
from flows.stages.verify import has_reached_original, verify
from flows.tracking.backends import update_backends
from rlcore.errors import UserError
from rlcore.store import checkpoint, compare
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import read_events
from rlcore.train.boundary import Boundary
from tests.soaking import always, heavy
from tests.stores import standing_api

pytestmark = [
    heavy,
    pytest.mark.slow,
    pytest.mark.usefixtures("warm"),
    # Prefect and MLflow themselves warn when they are imported; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]
TINY = [
    "exp=ppo",
    "env.capture_video=false",
    "env.num_envs=2",
    "algo.total_steps=512",
    "algo.rollout_steps=64",
    "algo.update_epochs=1",
    "checkpoint.every=128",
    "evaluation.every=256",
    "evaluation.episodes=2",
    "evaluation.final_episodes=4",
    "evaluation.baseline_episodes=5",
]


@pytest.fixture(scope="module")
def api(home: Path) -> Iterator[None]:
    """One Prefect API for the module."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    url, login = standing_api().values()
    with (
        pytest.MonkeyPatch.context() as patch,
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: login}),
    ):
        patch.setenv("PREFECT_API_URL", url)
        patch.setenv("PREFECT_API_AUTH_STRING", login)
        yield


@pytest.fixture(autouse=True)
def mirrored_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are copied to MLflow once, at their end, and in this process, which has imported MLflow already."""
    monkeypatch.setattr("flows.workers.flow_run.mirror_in_background", lambda run, every=0.0, last=False: None)
    monkeypatch.setattr("flows.workers.flow_run.finish_mirror", update_backends)


@pytest.fixture(scope="module")
def original(api: None, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished and registered run; model version `again/1`."""
    from flows import train as training

    folder = tmp_path_factory.mktemp("runs") / "first"
    name = "model_manager.models.agent.model_name=again"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.workers.flow_run.mirror_in_background", lambda run, every=0.0, last=False: None)
        patch.setattr("flows.workers.flow_run.finish_mirror", update_backends)
        training.train([*TINY, name, "group=night", f"run_dir={folder}"])
    return RunDirectory(folder)


def digests(run: RunDirectory) -> dict[int, str]:
    return {e["policy_steps"]: e["digest"] for e in read_events(run.events) if e["kind"] == "checkpoint"}


def typed(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.main(["reproduce", *arguments])
    output = capfd.readouterr()
    return code, output.out, output.err


@always
def test_reproduce_run_gives_same_digests(
    original: RunDirectory, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.compiled.when_to_compile.MANY", 200)  # long enough that auto counts its arithmetic
    code, out, err = typed(capfd, str(original.path), "--json")
    assert code == 0, err
    again, result = RunDirectory(original.path.with_name("first_again")), json.loads(out)
    state, _ = checkpoint.load(checkpoint.resolve(original, "latest"))
    tensors = len(compare.tensor_names(state))
    assert tensors > 20
    assert result["identical"] is True
    assert (result["tensors"], result["run_dir"]) == (tensors, str(again.path))
    assert result["result"].startswith(f"identical, {tensors} tensors at 4 checkpoints")
    assert len(digests(original)) == 4
    assert digests(again) == digests(original)
    assert list(compare.differences(*compare.common(original.path, again.path))) == []
    assert "no known differences from the original" in err
    identity = again.read_identity()
    assert identity["reproduces"] == original.read_identity()["run_id"] != identity["run_id"]
    assert again.read_config()["group"] is None
    assert [e["kind"] for e in read_events(again.events)].count("registered") == 0
    verdict = json.loads((again.path / VERDICT).read_text())
    assert (verdict["identical"], [s["policy_steps"] for s in verdict["segments"]]) == (True, list(digests(original)))
    # Another reproduction gets another folder; a folder given by the user must be free.
    assert restore(str(original.path)).path == again.path.with_name("first_again2")
    with pytest.raises(UserError, match="this folder already contains a run"):
        restore(str(original.path), str(again.path))


def test_reproduce_model_version_from_mlflow_alone(original: RunDirectory, tmp_path: Path) -> None:
    from flows.reproduce import reproduce

    version = int(checkpoint.choose(original).name)
    hidden = original.path.with_name("hidden")
    original.path.rename(hidden)
    try:
        result = reproduce(source="models:/again@challenger", run_dir=str(tmp_path / "mine"))
    finally:
        hidden.rename(original.path)
    assert result["result"].startswith("identical, ")
    of = Original.of(RunDirectory(tmp_path / "mine"))
    assert (of.source, of.run_dir, of.until) == ("models:/again@challenger", "", version)
    reproduced = digests(RunDirectory(tmp_path / "mine"))
    assert reproduced == {steps: digest for steps, digest in digests(original).items() if steps <= version}


@pytest.mark.parametrize("kept", [True, False], ids=["checkpoint kept", "checkpoint gone"])
def test_reproduce_stops_at_first_different_checkpoint(
    kept: bool, original: RunDirectory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The recorded config differs from that of the training, as if the code had changed.
    other = RunDirectory(tmp_path / "other")
    shutil.copytree(original.path, other.path)
    other.config.write_text(other.config.read_text().replace("lr: 0.001", "lr: 0.002"))
    assert other.config.read_text() != original.config.read_text()
    if not kept:
        shutil.rmtree(other.checkpoints / str(min(digests(original))), ignore_errors=True)
    code, out, err = typed(capfd, str(other.path))
    again = RunDirectory(tmp_path / "other_again")
    first = min(digests(original))
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert "config.yaml has algo.optimizer.lr=0.002" in err
    assert list(digests(again)) == [first]  # it went no further
    (sentence,) = (line for line in err.splitlines() if line.startswith("shepherd: failed: "))
    # The first entry in the order of the state: weights of a first layer, which every minibatch moves.
    assert f"different at {first:,} policy steps: first in learner/agent/actor.layers.0.weight" in sentence
    assert json.loads((again.path / VERDICT).read_text())["identical"] is False


def test_differences_here_names_changed_lineage(
    original: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = restore(str(original.path), str(tmp_path / "again"))
    assert list(differences_here(again)) == []
    note = json.loads((again.path / NOTE).read_text())
    lineage = note["lineage"]
    lineage["machine"]["libraries"]["torch"] = "1.13.1"
    lineage["machine"]["plugins"] = {"mine": "c0ffee"}
    lineage |= {"host": "elsewhere", "commit": "f" * 40, "code_diff": None, "core_hash": "another"}
    lineage["compile"] = "ahead-of-time"
    write_json(again.path / NOTE, note)
    sentences = list(differences_here(again))
    for part in (
        "the commit is",
        "the code of rlcore is different",
        "git checkout ffffffffff",
        "libraries.torch is ",
        ", was 1.13.1",
        "plugins.mine is None here, was c0ffee",
        "computed eager here, were ahead-of-time",
        " here, was elsewhere",
    ):
        assert any(part in sentence for sentence in sentences), (part, sentences)
    assert not any("threads" in sentence or "core_hash" in sentence for sentence in sentences)


def test_differences_here_names_edited_config(original: RunDirectory, tmp_path: Path) -> None:
    edited = RunDirectory(tmp_path / "edited")
    shutil.copytree(original.path, edited.path)
    edited.config.write_text(edited.config.read_text().replace("lr: 0.001", "lr: 0.002"))
    expected = "config.yaml has algo.optimizer.lr=0.002, but the run was trained with 0.001"
    assert list(differences_here(restore(str(edited.path), str(tmp_path / "again")))) == [expected]
    # Without a checkpoint to compare keys with, there is still the hash of the original config.
    shutil.rmtree(edited.checkpoints)
    again = restore(str(edited.path), str(tmp_path / "once_more"))
    hashed = original.read_identity()["config_hash"][:10]
    changed = f"config.yaml has changed since the run was created; its hash was {hashed}"
    assert changed in list(differences_here(again))


def test_restore_interrupted_reproduction_reuses_folder(original: RunDirectory, tmp_path: Path) -> None:
    folder = str(tmp_path / "again")
    first = restore(str(original.path), folder)
    (first.path / NOTE).unlink()  # as if killed before it was written
    second = restore(str(original.path), folder)
    assert second.path == first.path
    assert Original.of(second).until == max(digests(original))
    # The folder of another run is refused.
    with pytest.raises(UserError, match="this folder already contains a run"):
        restore(str(original.path), str(original.path))


def test_reproduction_stops_where_original_was_interrupted(original: RunDirectory, tmp_path: Path) -> None:
    half = RunDirectory(tmp_path / "half")
    shutil.copytree(original.path, half.path)
    steps = sorted(digests(original))
    lines = original.events.read_text().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if f'"path": "checkpoints/{steps[1]}"' in line)
    half.events.write_text("".join(lines[: cut + 1]))
    again = restore(str(half.path))
    boundaries = [Boundary(at, ("checkpoint",), at == steps[-1], None) for at in steps]
    assert [has_reached_original(again, at) for at in boundaries[:2]] == [False, True]
    assert not has_reached_original(again, boundaries[-1])  # training ends there anyway
    assert [e["status"] for e in read_events(again.events)] == ["interrupted"]


def test_verify_ignores_checkpoints_of_one_run(original: RunDirectory, tmp_path: Path) -> None:
    again = restore(str(original.path), str(tmp_path / "again"))
    again.events.write_text('{"kind": "checkpoint", "time": 1.0, "policy_steps": 77, "digest": "d", "tensors": ""}\n')
    assert verify(again, 77) is None
    assert verify(again, min(digests(original))) is None


def test_restore_refuses_changed_initial_weights(original: RunDirectory, tmp_path: Path) -> None:
    from flows.runs.create import new_run

    weights = tmp_path / "weights"
    shutil.copytree(
        checkpoint.resolve(original, "latest"), weights / "checkpoints" / checkpoint.resolve(original, "latest").name
    )
    for name in ("config.yaml", "env_card.json", "run.json"):
        shutil.copy(original.path / name, weights)
    child = new_run([*TINY, f"init_from={weights}", f"run_dir={tmp_path}/child"])
    recorded: dict[str, Any] = child.read_identity()["init_from"]
    assert recorded["digest"]
    write_json(child.identity, child.read_identity() | {"init_from": recorded | {"digest": "0" * 64}})
    child.events.write_text('{"kind": "checkpoint", "time": 1.0, "policy_steps": 128, "digest": "d", "tensors": ""}\n')
    with pytest.raises(UserError, match="it started from init_from=.* with digest 0000"):
        restore(str(child.path))
    assert not (tmp_path / "child_again").exists()


def test_restore_refuses_run_without_checkpoint(original: RunDirectory, tmp_path: Path) -> None:
    from flows.runs.create import new_run

    empty = new_run([*TINY, f"run_dir={tmp_path}/empty"])
    with pytest.raises(UserError, match="its event log has no checkpoint"):
        restore(str(empty.path))


def test_reproduce_extended_run_with_callback(
    original: RunDirectory, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import train as training

    plugin = "tests.probes.callbacks"
    monkeypatch.setenv("SHEPHERD_PLUGINS", plugin)
    run = RunDirectory(original.path.with_name("further"))
    changes = ["algo.total_steps=1024", f"callbacks=[{plugin}:Recorder]", "model_manager.disabled=true"]
    assert training.extend(str(original.path), [*changes, f"run_dir={run.path}"])["policy_steps"] == 1024
    code, out, err = typed(capfd, str(run.path), "--json")
    assert code == 0, err
    result, again = json.loads(out), RunDirectory(run.path.with_name("further_again"))
    assert result["identical"] is True and "no known differences from the original" in err
    assert digests(again) == digests(run) and list(digests(run)) == [640, 768, 896, 1024]
    origins = [each.read_identity()["extend_from"] for each in (run, again)]
    assert origins[0]["run_id"] == original.read_identity()["run_id"]
    assert origins[1] == {**origins[0], "given": origins[0]["path"]}
    logged = [[e["values"] for e in read_events(each.events) if e["kind"] == "callback"] for each in (run, again)]
    assert logged[0] == logged[1] and logged[0][-1] == {"Mine/end": 1}
