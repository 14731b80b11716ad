"""Damaged and malicious checkpoints are refused with an error message, and nothing in them is executed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.evaluation.policy import load_policy, write_policy_folder
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.store.checkpoint.reading import FILES, FORMAT
from rlcore.store.checkpoint.sealed_json import seal, unseal
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

SEED = 20261
EVERY_FILE = ("manifest.json", *FILES)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "outer" / "run")


def save(run: RunDirectory, policy_steps: int = 64) -> Path:
    generator = torch.Generator().manual_seed(policy_steps)
    learning = {"weight": torch.randn(100, generator=generator), "rng": {"state": 2**127 + 1}, "count": policy_steps}
    return checkpoint.save(run.checkpoints, policy_steps, learning, {"time": policy_steps, "window": [1.5, None, "x"]})


def refusal(path: Path) -> str:
    """The error message of loading; `damage` must report the same if it finds damage."""
    wrong = checkpoint.damage(path)
    with pytest.raises(UserError) as refused:
        checkpoint.load(path)
    assert wrong is None or wrong in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# Damage ---------------------------------------------------------------------------------------------------------------


def is_detected(path: Path, name: str, change: Callable[[bytes], bytes]) -> bool:
    """Return True if `damage` detects a changed file and names it; the file is restored afterwards."""
    file = path / name
    content = file.read_bytes()
    file.write_bytes(change(content))
    try:
        wrong = checkpoint.damage(path)
        return wrong is not None and wrong.startswith(name)
    finally:
        file.write_bytes(content)


def flipped(bit: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        data = bytearray(content)
        data[bit // 8] ^= 1 << bit % 8
        return bytes(data)

    return change


def test_damage_names_file_with_flipped_bit(run: RunDirectory) -> None:
    path, rng = save(run), random.Random(SEED)
    tried = [(name, rng.randrange(8 * (path / name).stat().st_size)) for name in EVERY_FILE for _ in range(150)]
    missed = [flip for flip in tried if not is_detected(path, flip[0], flipped(flip[1]))]
    print(f"seed {SEED}: {len(tried) - len(missed)} of {len(tried)} flips found")
    assert not missed
    assert checkpoint.damage(path) is None


def test_unseal_rejects_every_flipped_bit(run: RunDirectory) -> None:
    content = (save(run) / "manifest.json").read_bytes()
    unseal(content)
    for bit in range(8 * len(content)):
        with pytest.raises(ValueError, match="changed since it was written"):
            unseal(flipped(bit)(content))


def test_damage_names_truncated_file(run: RunDirectory) -> None:
    path, rng = save(run), random.Random(SEED)
    tried = [(name, rng.randrange((path / name).stat().st_size)) for name in EVERY_FILE for _ in range(75)]
    missed = [cut for cut in tried if not is_detected(path, cut[0], lambda content, n=cut[1]: content[:n])]
    print(f"seed {SEED}: {len(tried) - len(missed)} of {len(tried)} truncations found")
    assert not missed


@pytest.mark.parametrize("name", EVERY_FILE)
def test_damage_names_zeroed_or_extended_file(run: RunDirectory, name: str) -> None:
    path = save(run)
    assert is_detected(path, name, lambda content: bytes(len(content)))
    assert is_detected(path, name, lambda content: content[:-64] + bytes(64))
    assert is_detected(path, name, lambda content: content + b"\n")


@pytest.mark.parametrize("name", EVERY_FILE)
def test_damage_names_file_of_other_checkpoint(run: RunDirectory, name: str) -> None:
    path, other = save(run, 64), save(run, 128)
    assert is_detected(path, name, lambda content: (other / name).read_bytes())


def test_load_refuses_renamed_checkpoint(run: RunDirectory) -> None:
    os.rename(save(run, 64), run.checkpoints / "128")
    assert refusal(run.checkpoints / "128").count("manifest.json does not belong to this checkpoint") == 1


def test_load_names_missing_files(run: RunDirectory) -> None:
    for name in (*EVERY_FILE, "learning", "bookkeeping"):
        path = save(run)
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
        assert name in refusal(path)


def test_load_names_unexpected_files(run: RunDirectory) -> None:
    for name in ("learning/extra.pt", "more", "bookkeeping/.hidden", "a\x1b[2Jb\nc"):
        path = save(run)
        (path / name).write_bytes(b"")
        assert repr(name) in refusal(path)
        (path / name).unlink()
    (path / "learning" / "empty").mkdir()
    assert "learning/empty" in refusal(path)


@pytest.mark.parametrize("name", EVERY_FILE)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "dangling"])
def test_load_refuses_links_pipes_and_folders(run: RunDirectory, tmp_path: Path, name: str, kind: str) -> None:
    file, away = save(run) / name, tmp_path / "away"
    os.rename(file, away)
    if kind == "pipe":
        os.mkfifo(file)  # reading it would wait for a writer
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(away if kind == "link" else tmp_path / "nothing")  # a link to the same bytes elsewhere
    assert name in refusal(run.checkpoints / "64")


def test_load_refuses_linked_folder(run: RunDirectory, tmp_path: Path) -> None:
    path = save(run)
    os.rename(path / "learning", tmp_path / "away")
    (path / "learning").symlink_to(tmp_path / "away")
    assert "learning is not a folder" in refusal(path)


def test_load_ignores_changes_after_verification(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decode = save(run), nested_state.decode

    def late(*arguments: Any, **named: Any) -> Any:
        for name in EVERY_FILE:
            (path / name).write_bytes(b"changed")
        return decode(*arguments, **named)

    monkeypatch.setattr(nested_state, "decode", late)
    learning, bookkeeping = checkpoint.load(path)
    assert (learning["count"], bookkeeping["time"]) == (64, 64)


def test_load_refuses_checkpoint_of_version_0_1(run: RunDirectory) -> None:
    path = save(run)
    manifest = json.loads((path / "manifest.json").read_bytes())
    first = {"format": 2, "policy_steps": 64, "files": manifest["files"]}
    for data in (json.dumps(first).encode(), seal(first)):
        (path / "manifest.json").write_bytes(data)
        assert refusal(path).endswith(
            "manifest.json was written by Shepherd 0.1.0, which this version cannot read; train again with this version"
        )


# Harm -----------------------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it creates a folder."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


# Loaders that execute a plain pickle, or one stored by torch or NumPy.
OPENERS: dict[str, Callable[[Path], Any]] = {
    "pickle": lambda path: pickle.loads(path.read_bytes()),
    "torch": lambda path: torch.load(path, weights_only=False),
    "numpy": lambda path: np.load(path, allow_pickle=True),
}


def bombs(canary: Path, folder: Path) -> dict[str, bytes]:
    torch.save(Bomb(canary), folder / "bomb.pt")
    np.save(folder / "bomb.npy", np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    return {
        "pickle": pickle.dumps(Bomb(canary)),
        "torch": (folder / "bomb.pt").read_bytes(),
        "numpy": (folder / "bomb.npy").read_bytes(),
    }


def test_pickle_bombs_work_with_unsafe_loaders(tmp_path: Path) -> None:
    for kind, content in bombs(tmp_path / "canary", tmp_path).items():
        (tmp_path / "file").write_bytes(content)
        OPENERS[kind](tmp_path / "file")
        (tmp_path / "canary").rmdir()


def forge(path: Path, **contents: bytes) -> Path:
    """Replace `state`, `tensors` or `bookkeeping` of a checkpoint and write a valid manifest for them."""
    names = dict(zip(("state", "tensors", "bookkeeping"), FILES, strict=True))
    for key, content in contents.items():
        (path / names[key]).write_bytes(content)
    files = {name: (path / name).read_bytes() for name in FILES}
    entries = {n: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in files.items()}
    (path / "manifest.json").write_bytes(seal({"format": FORMAT, "policy_steps": int(path.name), "files": entries}))
    assert checkpoint.damage(path) is None
    return path


def outside(tmp_path: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file() and "outer" not in f.parts}


@pytest.mark.parametrize("kind", ["pickle", "torch", "numpy"])
def test_load_never_executes_pickle_bomb(run: RunDirectory, tmp_path: Path, kind: str) -> None:
    canary = tmp_path / "canary"
    bomb = bombs(canary, tmp_path)[kind]
    before = outside(tmp_path)
    for key, name in zip(("state", "tensors", "bookkeeping"), FILES, strict=True):
        assert name in refusal(forge(save(run), **{key: bomb}))
        shutil.rmtree(run.checkpoints)
    path = save(run)
    (path / "manifest.json").write_bytes(bomb)
    assert "manifest.json" in refusal(path)
    path = save(run, 128)
    run.names.write_bytes(bomb)
    run.events.write_bytes(bomb + b"\n")
    assert list(read_events(run.events)) == []
    assert checkpoint.choose(run) == checkpoint.resolve(run, "latest") == path
    checkpoint.prune(run, 1, path)
    assert outside(tmp_path) == before
    assert not canary.exists()


JSON_BOMBS = {
    "deep list": b"[" * 200_000,
    "deep and whole": b'{"list": [' * 50_000 + b"]}" * 50_000,
    "deep enough to be read but not joined": b'{"list": [' * 400 + b"]}" * 400,
    "huge integer": b'{"items": [["count", ' + b"9" * 100_000 + b"]]}",
    "not text": b"\xff\xfe\x00\x01",
    "empty": b"",
    "a number": b"1",
    "a list": b"[]",
    "two kinds": b'{"tensor": "/weight", "array": "/weight"}',
    "no kind": b"{}",
    "unknown kind": b'{"object": "os.system"}',
    "tensor that is not there": b'{"items": [["weight", {"tensor": "elsewhere"}]]}',
    "tensor named by a list": b'{"items": [["weight", {"tensor": ["/weight"]}]]}',
    "tensor named twice": b'{"items": [["a", {"tensor": "/weight"}], ["b", {"tensor": "/weight"}]]}',
    "key that is a list": b'{"items": [[["a"], 1]]}',
    "item without a value": b'{"items": [["a"]]}',
    "items that are none": b'{"items": 5}',
    "items of a dict": b'{"items": {"ab": 1}}',
    "tensors that nobody names": b'{"items": []}',
    "not a state": b'{"tensor": "/weight"}',
}


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_load_refuses_hostile_state(run: RunDirectory, name: str) -> None:
    sentence = refusal(forge(save(run), state=JSON_BOMBS[name]))
    assert "learning/" in sentence


@pytest.mark.parametrize("name", ["deep list", "huge integer", "not text", "empty", "a number", "a list"])
def test_load_refuses_hostile_bookkeeping(run: RunDirectory, name: str) -> None:
    assert "bookkeeping/state.json" in refusal(forge(save(run), bookkeeping=JSON_BOMBS[name]))


def tensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TENSOR_BOMBS = {
    "header of 2**60 bytes": tensors(b"{}", length=2**60),
    "header of 2**64 - 1 bytes": tensors(b"{}", length=2**64 - 1),
    "header of 90 MB that are not there": tensors(b"{}", length=90_000_000),
    "no header": b"",
    "half a length": b"\x01\x00",
    "header that is not JSON": tensors(b"{]"),
    "deep header": tensors(b'{"a":' * 100_000),
    "overlapping offsets": tensors({"/weight": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "gap": tensors({"/weight": entry([1], 4, 8)}, bytes(8)),
    "offsets backwards": tensors({"/weight": entry([1], 4, 0)}, bytes(4)),
    "negative offsets": tensors({"/weight": entry([1], -4, 0)}, bytes(4)),
    "beyond the end": tensors({"/weight": entry([2**30], 0, 2**32)}, bytes(8)),
    "huge shape without data": tensors({"/weight": entry([2**40], 0, 0)}),
    "shape that overflows": tensors({"/weight": entry([2**62, 8], 0, 0)}),
    "shape of 2**63": tensors({"/weight": entry([2**63 - 1, 2**63 - 1, 0], 0, 0)}),
    "unknown dtype": tensors({"/weight": entry([1], 0, 4, "PICKLE")}, bytes(4)),
    "text for a shape": tensors({"/weight": {"dtype": "F32", "shape": "os", "data_offsets": [0, 4]}}, bytes(4)),
    "path for a name": tensors({"../../../x": entry([1], 0, 4)}, bytes(4)),
    "more data than named": tensors({"/weight": entry([1], 0, 4)}, bytes(400)),
}


@pytest.mark.parametrize("name", TENSOR_BOMBS)
def test_load_refuses_hostile_tensors_with_little_memory(run: RunDirectory, name: str) -> None:
    path = forge(save(run), tensors=TENSOR_BOMBS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "learning/" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.parametrize("name", ["../../../x", "/etc/passwd", "learning/../../../../x", "learning/state.json\x00", ""])
@pytest.mark.parametrize("instead", [True, False])
def test_manifest_with_other_files_is_refused(run: RunDirectory, tmp_path: Path, name: str, instead: bool) -> None:
    path = save(run)
    (tmp_path / "x").write_bytes(b"theirs")
    before = outside(tmp_path)
    content = json.loads((path / "manifest.json").read_bytes())
    files = content["files"]
    files[name] = files.pop("learning/state.json") if instead else files["learning/state.json"]
    (path / "manifest.json").write_bytes(seal(content))
    assert "manifest.json does not belong to this checkpoint" in refusal(path)
    with pytest.raises(UserError, match="manifest.json does not belong to this checkpoint"):
        checkpoint.manifest(path)
    assert outside(tmp_path) == before


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": list(FILES)},
        {"files": dict.fromkeys(FILES)},
        {"files": {name: {"size": 2**60, "sha256": "0"} for name in FILES}},
        {"files": {name: {"size": -1} for name in FILES}},
        {"files": {name: [1] for name in FILES}},
        {"policy_steps": None},
        {"policy_steps": 2**70},
        {"policy_steps": [64]},
        {"format": None},
        {"format": "2"},
        {"format": 10**50},
    ],
)
def test_manifest_with_invalid_values_is_refused(run: RunDirectory, change: dict[str, Any]) -> None:
    path = save(run)
    content = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_bytes(seal(content | change))
    assert ".json" in refusal(path)


def test_load_refuses_huge_manifest(run: RunDirectory) -> None:
    path = save(run)
    with open(path / "manifest.json", "ab") as handle:
        handle.truncate(2**40)  # takes no space
    assert "manifest.json has changed since it was written" in refusal(path)


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best", ["../../../x", "/etc", "", "64/../..", "²", None, 64, ["64"], "9" * 5000])
def test_choose_ignores_names_outside_checkpoints(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, best: Any
) -> None:
    path = save(run)
    run.names.write_bytes(seal({"best": best, "latest": "64"}))
    assert checkpoint.choose(run) == path
    assert "names.json is damaged" in caplog.text


def test_newest_first_ignores_non_numeric_folders(run: RunDirectory) -> None:
    path = save(run)
    for name in ("²", "64.bak", "-1", "9" * 200, "٣"):
        (run.checkpoints / name).mkdir()
    assert list(checkpoint.newest_first(run.checkpoints)) == [path]


# A whole run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = prepare(tmp_path_factory.mktemp("trained") / "run")
    session = RunTrainer(run)
    session.advance(lambda facts: None)
    session.save()
    session.close()
    return run


@pytest.mark.parametrize("state", [{}, {"learner": 5}, {"learner": {"agent": {}}, "buffer": 1}])
def test_run_trainer_refuses_state_of_other_kind(trained: RunDirectory, tmp_path: Path, state: dict[str, Any]) -> None:
    run = RunDirectory(tmp_path / "copy")
    shutil.copytree(trained.path, run.path)
    shape, numbers = nested_state.encode(state)
    forge(checkpoint.resolve(run, "latest"), state=shape, tensors=numbers)
    with pytest.raises(
        UserError, match=r"learning/state.json or bookkeeping/state.json does not contain a state of this run"
    ):
        RunTrainer(run)


@pytest.mark.parametrize("name", ["policy.json", "agent.json", "agent.safetensors"])
def test_load_policy_refuses_hostile_files(trained: RunDirectory, tmp_path: Path, name: str) -> None:
    contents = [*bombs(tmp_path / "canary", tmp_path).values(), b"", b"{}", b"[" * 100_000, b'{"format": 1}']
    folder = write_policy_folder(trained, checkpoint.resolve(trained, "latest"), tmp_path / "policy")
    load_policy(folder)
    for content in contents:
        (folder / name).write_bytes(content)
        with pytest.raises(UserError) as refused:
            load_policy(folder)
        assert str(refused.value).startswith(str(folder))
    (folder / name).unlink()
    with pytest.raises(UserError):
        load_policy(folder)
    assert not (tmp_path / "canary").exists()
