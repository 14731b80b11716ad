"""Chunks, which never change again, are written once, verified like the rest, and removed when nothing needs them."""

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


def test_a_checkpoint_writes_only_the_chunks_that_are_new(tmp_path: Path) -> None:
    directory, one, two = run(tmp_path), chunk(1), chunk(2)
    first = save(directory, 10, one)
    written = {path: path.stat().st_ino for path in (directory.checkpoints / "chunks").iterdir()}
    one.columns = lambda: pytest.fail("it was read again")
    second = save(directory, 20, one, two)
    assert len(files(directory)) == 2 and all(path.stat().st_ino == node for path, node in written.items())
    assert values(first) == [1] and values(second) == [1, 2]


def test_a_loaded_chunk_is_not_written_again_and_equal_ones_share_a_file(tmp_path: Path) -> None:
    directory = run(tmp_path)
    path = save(directory, 10, chunk(1))
    (loaded,) = checkpoint.load(path)[0]["replay"]["chunks"]
    loaded.columns = lambda: pytest.fail("it was read again")
    again = save(directory, 20, loaded, chunk(1))
    assert len(files(directory)) == 1 and values(again) == [1, 1]
    assert checkpoint.manifest(again)["digest"] != checkpoint.manifest(path)["digest"]


def test_the_same_chunks_give_the_same_digest_wherever_they_lie(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        digests.add(checkpoint.manifest(save(run(tmp_path / name), 10, chunk(1), chunk(2)))["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "link"])
def test_a_checkpoint_whose_chunk_is_damaged_is_not_good_and_says_so(tmp_path: Path, harm: str) -> None:
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


def test_what_asks_for_no_chunk_reads_none(tmp_path: Path) -> None:
    """A policy is whole without the memory of its run: nothing that plays or judges it pays for that."""
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


def test_chunks_that_no_checkpoint_refers_to_are_removed_and_no_others(tmp_path: Path) -> None:
    directory, parts = run(tmp_path), [chunk(n) for n in range(4)]
    for n in range(3):
        path = save(directory, n + 1, *parts[n : n + 2])
        checkpoint.prune(directory, 2, path)
    assert len(files(directory)) == 3
    assert values(directory.checkpoints / "2") == [1, 2] and values(directory.checkpoints / "3") == [2, 3]


def test_nothing_is_removed_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    directory = run(tmp_path)
    save(directory, 1, chunk(1))
    path = save(directory, 2, chunk(2))
    (directory.checkpoints / "1" / "manifest.json").write_text("{}")
    checkpoint.prune(directory, 2, path)
    assert len(files(directory)) == 2


def test_what_a_killed_process_left_is_completed(tmp_path: Path) -> None:
    directory = run(tmp_path)
    save(directory, 1, chunk(1))
    (name,) = files(directory)
    (directory.checkpoints / "chunks" / name).write_bytes(b"half")
    (directory.checkpoints / "chunks" / f".{name}.tmp-1").write_bytes(b"half")
    path = save(directory, 2, chunk(1))
    checkpoint.prune(directory, None, path)
    assert values(path) == [1] and files(directory) == {name}


def test_diff_names_the_first_element_in_which_chunks_differ(tmp_path: Path) -> None:
    paths = []
    for number in (1, 3):
        (tmp_path / str(number)).mkdir()
        paths.append(save(run(tmp_path / str(number)), 10, chunk(0), chunk(number)))
    (difference,) = differences(*paths)
    assert str(difference).startswith("replay/chunks/1/obs/state[0]: 1 and 3")
    assert not list(differences(paths[0], paths[0]))


@pytest.mark.parametrize("entry", [{}, {"file": "../x", "size": 1, "sha256": ""}, 3, {"file": None}])
def test_an_entry_that_nobody_wrote_is_a_sentence(tmp_path: Path, entry: Any) -> None:
    from rlcore.store.checkpoint import nested_state
    from rlcore.store.checkpoint.chunks import chunk_of

    shape = json.dumps({"chunk": entry}).encode()
    with pytest.raises(UserError, match="is not the state of a checkpoint"):
        nested_state.decode(shape, nested_state.encode({})[1], chunk=lambda given: chunk_of(given, tmp_path))
