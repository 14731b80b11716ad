"""Chunks never change: they are written once, verified, and removed when no checkpoint refers to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.compare import differences
from rlcore.store.directory import RunDirectory
from rlcore.types import Chunk


def chunk(number: int) -> Chunk:
    return Chunk(lambda: {"reward": torch.full((100,), float(number)), "obs/state": torch.arange(100) + number})


def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "events.jsonl").touch()
    return RunDirectory(tmp_path)


def save(directory: RunDirectory, policy_steps: int, *chunks: Chunk) -> Path:
    return checkpoint.save(directory.checkpoints, policy_steps, {"replay": {"chunks": list(chunks)}}, {})


def files(directory: RunDirectory) -> set[str]:
    return {path.name for path in (directory.checkpoints / "chunks").iterdir()}


def values(path: Path) -> list[Any]:
    return [int(part.columns()["reward"][0]) for part in checkpoint.load(path)[0]["replay"]["chunks"]]


def test_save_writes_only_new_chunks(tmp_path: Path) -> None:
    directory, one, two = run(tmp_path), chunk(1), chunk(2)
    first = save(directory, 10, one)
    written = {path: path.stat().st_ino for path in (directory.checkpoints / "chunks").iterdir()}
    one.columns = lambda: pytest.fail("it was read again")
    second = save(directory, 20, one, two)
    assert len(files(directory)) == 2 and all(path.stat().st_ino == node for path, node in written.items())
    assert values(first) == [1] and values(second) == [1, 2]


def test_save_reuses_loaded_and_equal_chunks(tmp_path: Path) -> None:
    directory = run(tmp_path)
    path = save(directory, 10, chunk(1))
    (loaded,) = checkpoint.load(path)[0]["replay"]["chunks"]
    loaded.columns = lambda: pytest.fail("it was read again")
    again = save(directory, 20, loaded, chunk(1))
    assert len(files(directory)) == 1 and values(again) == [1, 1]
    assert checkpoint.manifest(again)["digest"] != checkpoint.manifest(path)["digest"]


def test_chunk_digest_is_independent_of_directory(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        digests.add(checkpoint.manifest(save(run(tmp_path / name), 10, chunk(1), chunk(2)))["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "link"])
def test_damaged_chunk_makes_checkpoint_bad(tmp_path: Path, harm: str) -> None:
    directory = run(tmp_path)
    save(directory, 10, chunk(1))
    bad = save(directory, 20, chunk(1), chunk(2))
    (name,) = files(directory) - set(checkpoint.manifest(directory.checkpoints / "10")["chunks"])
    file = directory.checkpoints / "chunks" / name
    content = file.read_bytes()
    file.unlink()
    if harm == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "cut":
        file.write_bytes(content[:-1])
    elif harm == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    assert f"chunks/{name}" in str(checkpoint.damage(bad))
    assert checkpoint.newest_good(directory.checkpoints, with_chunks=True) == directory.checkpoints / "10"
    good = checkpoint.load_newest(directory.checkpoints, with_chunks=True)
    assert good is not None and good[0].name == "10"
    with pytest.raises(UserError, match=name):
        values(bad)


def test_loading_policy_reads_no_chunks(tmp_path: Path) -> None:
    """A policy is complete without the replay buffer of its run, so playing and evaluating do not read it."""
    directory = run(tmp_path)
    path = save(directory, 10, chunk(1), chunk(2))
    shutil.rmtree(directory.checkpoints / "chunks")
    checkpoint.name_best(directory, path)
    newest = checkpoint.load_newest(directory.checkpoints)
    assert newest is not None and newest[0] == path
    assert {checkpoint.resolve(directory), checkpoint.choose(directory)} == {path}
    learning, _ = checkpoint.load(path)
    with pytest.raises(UserError, match=r"chunks/\w+\.safetensors cannot be read"):
        learning["replay"]["chunks"][0].columns()


def test_prune_removes_only_unreferenced_chunks(tmp_path: Path) -> None:
    directory, parts = run(tmp_path), [chunk(n) for n in range(4)]
    for n in range(3):
        path = save(directory, n + 1, *parts[n : n + 2])
        checkpoint.prune(directory, 2, path)
    assert len(files(directory)) == 3
    assert values(directory.checkpoints / "2") == [1, 2] and values(directory.checkpoints / "3") == [2, 3]


def test_prune_keeps_chunks_while_manifest_is_damaged(tmp_path: Path) -> None:
    directory = run(tmp_path)
    save(directory, 1, chunk(1))
    path = save(directory, 2, chunk(2))
    (directory.checkpoints / "1" / "manifest.json").write_text("{}")
    checkpoint.prune(directory, 2, path)
    assert len(files(directory)) == 2


def test_save_completes_chunk_of_killed_process(tmp_path: Path) -> None:
    directory = run(tmp_path)
    save(directory, 1, chunk(1))
    (name,) = files(directory)
    (directory.checkpoints / "chunks" / name).write_bytes(b"half")
    (directory.checkpoints / "chunks" / f".{name}.tmp-1").write_bytes(b"half")
    path = save(directory, 2, chunk(1))
    checkpoint.prune(directory, None, path)
    assert values(path) == [1] and files(directory) == {name}


def test_differences_name_first_different_chunk_element(tmp_path: Path) -> None:
    paths = []
    for number in (1, 3):
        (tmp_path / str(number)).mkdir()
        paths.append(save(run(tmp_path / str(number)), 10, chunk(0), chunk(number)))
    (difference,) = differences(*paths)
    assert str(difference).startswith("replay/chunks/1/obs/state[0]: 1 and 3")
    assert not list(differences(paths[0], paths[0]))


@pytest.mark.parametrize("entry", [{}, {"file": "../x", "size": 1, "sha256": ""}, 3, {"file": None}])
def test_decode_refuses_invalid_chunk_entry(tmp_path: Path, entry: Any) -> None:
    from rlcore.store.checkpoint import nested_state
    from rlcore.store.checkpoint.chunks import chunk_of

    shape = json.dumps({"chunk": entry}).encode()
    with pytest.raises(UserError, match="is not the state of a checkpoint"):
        nested_state.decode(shape, nested_state.encode({})[1], chunk=lambda given: chunk_of(given, tmp_path))
