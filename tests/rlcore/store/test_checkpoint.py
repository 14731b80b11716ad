from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from rlcore.errors import RunError, UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def save(run: RunDirectory, policy_steps: int, number: float = 1.0, scheduled: bool = True) -> Path:
    learning = {"learner": {"weight": torch.full((4,), number)}, "count": policy_steps}
    return checkpoint.save(run.checkpoints, policy_steps, learning, {"time": 5}, scheduled=scheduled)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_load_returns_saved_state(run: RunDirectory) -> None:
    learning, bookkeeping = checkpoint.load(save(run, 64))
    assert learning["learner"]["weight"].tolist() == [1.0] * 4 and learning["count"] == 64
    assert bookkeeping == {"time": 5}


@pytest.mark.parametrize("name", ["learning/state.json", "learning/tensors.safetensors", "bookkeeping/state.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "lengthen"])
def test_load_detects_damage_of_any_file(run: RunDirectory, name: str, harm: str) -> None:
    path = save(run, 64)
    file = path / name
    if harm == "flip":
        flip(file)
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "lengthen":
        file.write_bytes(file.read_bytes() + b"x")
    else:
        file.unlink()
    with pytest.raises(UserError, match=name):
        checkpoint.load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}'])
def test_damage_detects_invalid_manifest(run: RunDirectory, content: bytes) -> None:
    path = save(run, 64)
    (path / "manifest.json").write_bytes(content)
    assert "manifest.json" in str(checkpoint.damage(path))


def test_damage_detects_manifest_of_other_checkpoint(run: RunDirectory) -> None:
    first, second = save(run, 64), save(run, 128)
    (second / "manifest.json").write_bytes((first / "manifest.json").read_bytes())
    assert checkpoint.damage(second) == "manifest.json does not belong to this checkpoint"


def test_damage_detects_additional_file(run: RunDirectory) -> None:
    path = save(run, 64)
    (path / "learning" / "extra.pickle").write_bytes(b"x")
    assert "extra.pickle" in str(checkpoint.damage(path))


def test_newest_good_skips_damaged_with_warning(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    save(run, 64), save(run, 128), flip(save(run, 1000) / "learning/tensors.safetensors")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest_good(run.checkpoints) == run.checkpoints / "128"
    assert "1000 is damaged and was skipped: learning/tensors.safetensors" in caplog.text


def test_newest_good_without_checkpoint_is_none(run: RunDirectory) -> None:
    assert checkpoint.newest_good(run.checkpoints) is None


def test_save_replaces_only_damaged_checkpoint(run: RunDirectory) -> None:
    path = save(run, 64, number=1.0)
    save(run, 64, number=2.0)
    assert checkpoint.load(path)[0]["learner"]["weight"][0] == 1
    flip(path / "learning/tensors.safetensors")
    save(run, 64, number=2.0)
    assert checkpoint.load(path)[0]["learner"]["weight"][0] == 2


def test_save_removes_leftovers_of_killed_writer(run: RunDirectory) -> None:
    leftover = run.checkpoints / ".64.tmp-123"
    (leftover / "learning").mkdir(parents=True)
    assert list(checkpoint.newest_first(run.checkpoints)) == []
    save(run, 128)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["128"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_save_on_full_disk_keeps_older_checkpoints(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    save(run, 64)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"128 could not be written \(No space left on device\)"):
        save(run, 128)
    monkeypatch.undo()
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["64"]
    assert checkpoint.newest_good(run.checkpoints) == run.checkpoints / "64"


def test_digest_covers_only_learning_state(run: RunDirectory, tmp_path: Path) -> None:
    learning = {"weight": torch.ones(2)}
    paths = [checkpoint.save(tmp_path / str(i), 64, learning, {"time": i}) for i in range(2)]
    other = checkpoint.save(tmp_path / "other", 64, {"weight": torch.zeros(2)}, {"time": 0})
    digests = [checkpoint.manifest(p)["digest"] for p in (*paths, other)]
    assert digests[0] == digests[1] != digests[2]


def test_resolve_finds_names_or_lists_checkpoints(run: RunDirectory) -> None:
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoint.resolve(run, "latest")
    save(run, 64), save(run, 128)
    assert checkpoint.resolve(run, "latest").name == "128"
    assert checkpoint.resolve(run, 64).name == checkpoint.resolve(run, "64").name == "64"
    with pytest.raises(UserError, match="no best checkpoint yet; use latest or one of 128, 64"):
        checkpoint.resolve(run, "best")
    checkpoint.name_best(run, run.checkpoints / "64")
    assert checkpoint.resolve(run, "best").name == "64"
    with pytest.raises(UserError, match="no checkpoint 65; choose latest, best or one of 128, 64"):
        checkpoint.resolve(run, 65)


def test_prune_keeps_newest_and_best(run: RunDirectory) -> None:
    for policy_steps in (64, 128, 1000, 2000):
        save(run, policy_steps)
    checkpoint.name_best(run, run.checkpoints / "64")
    checkpoint.prune(run, 2, run.checkpoints / "2000")
    assert sorted(int(p.name) for p in checkpoint.newest_first(run.checkpoints)) == [64, 1000, 2000]
    names = json.loads(run.names.read_text())
    assert (names["best"], names["latest"]) == ("64", "2000")
    checkpoint.prune(run, None, run.checkpoints / "2000")
    assert len(list(checkpoint.newest_first(run.checkpoints))) == 3


def test_prune_counts_only_scheduled_checkpoints(run: RunDirectory) -> None:
    def steps_kept() -> list[int]:
        return sorted(int(path.name) for path in checkpoint.newest_first(run.checkpoints))

    for policy_steps in (64, 96, 128, 160, 192, 224):
        path = save(run, policy_steps, scheduled=policy_steps % 64 == 0)
        if policy_steps == 96:
            checkpoint.name_best(run, path)
        checkpoint.prune(run, 2, path)
    assert steps_kept() == [96, 128, 192, 224]  # the best, two scheduled ones and the newest
    checkpoint.prune(run, 2, save(run, 256))
    assert steps_kept() == [96, 192, 256]


def test_prune_does_not_count_damaged_checkpoints(run: RunDirectory) -> None:
    save(run, 64)
    for policy_steps in (128, 256):
        flip(save(run, policy_steps) / "learning/tensors.safetensors")
    checkpoint.prune(run, 1, save(run, 100))  # resumed from 64, interrupted at 100
    assert checkpoint.newest_good(run.checkpoints) == run.checkpoints / "100"
    checkpoint.prune(run, 1, save(run, 128))
    assert checkpoint.newest_good(run.checkpoints) == run.checkpoints / "128"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"best": "64", "latest": "128"}', bytes(100), None])
def test_damaged_names_are_restored_from_event_log(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    log = EventLog(run.events)
    for policy_steps, mean in ((64, 5.0), (128, 9.0), (256, 9.0), (512, 3.0)):
        path = save(run, policy_steps)
        log.append("evaluation", policy_steps=policy_steps, final=False, greedy={"mean": mean})
    log.append("evaluation", policy_steps=512, final=True, greedy={"mean": 100.0})
    checkpoint.name_best(run, run.checkpoints / "256")
    run.names.unlink() if content is None else run.names.write_bytes(content)
    checkpoint.prune(run, 1, path)
    assert [p.name for p in checkpoint.newest_first(run.checkpoints)] == ["512", "256"]
    assert checkpoint.choose(run).name == "256"
    assert ("names.json is damaged" in caplog.text) == (content is not None)


def test_names_detect_any_bit_flip(run: RunDirectory) -> None:
    save(run, 64), save(run, 128)
    EventLog(run.events).append("evaluation", policy_steps=64, final=False, greedy={"mean": 5.0})
    checkpoint.name_best(run, run.checkpoints / "64")
    whole = run.names.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        run.names.write_bytes(data)
        assert checkpoint.resolve(run, "best").name == "64"


def test_prune_renames_checkpoint_before_removal(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 64), save(run, 128)

    def killed(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(run, 1, run.checkpoints / "128")
    monkeypatch.undo()
    assert [p.name for p in checkpoint.newest_first(run.checkpoints)] == ["128"]
    save(run, 256)
    assert not list(run.checkpoints.glob(".*"))


def test_prune_on_full_disk_only_warns(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(run, 64), save(run, 128)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    checkpoint.prune(run, 1, run.checkpoints / "128")
    assert "older checkpoints could not be removed yet" in caplog.text
    assert len(list(checkpoint.newest_first(run.checkpoints))) == 2


def test_manifest_refuses_damaged_file(run: RunDirectory) -> None:
    path = save(run, 64)
    (path / "manifest.json").write_bytes(b"{")
    with pytest.raises(UserError, match="manifest.json has changed since it was written"):
        checkpoint.manifest(path)
