"""Free is what the machine has, or less where a control group allows less."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.system import free_memory

GROUPS = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_name, used_name, cache_name = GROUPS[version]
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / used_name).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 3\n{cache_name} {cache}\n")


def inside(monkeypatch: pytest.MonkeyPatch, root: Path, line: str) -> None:
    monkeypatch.setattr(free_memory, "CGROUPS", root)
    real = Path.read_text
    told = {"/proc/self/cgroup": f"{line}\n", "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000000 kB\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: told.get(str(path)) or real(path, *rest))


@pytest.mark.parametrize(("version", "line"), [(2, "0::/jobs/mine"), (1, "4:cpu,memory:/jobs/mine")])
def test_the_narrowest_control_group_counts_and_its_file_cache_makes_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, line: str
) -> None:
    top = tmp_path if version == 2 else tmp_path / "memory"
    inside(monkeypatch, tmp_path, line)
    group(top / "jobs" / "mine", version, str(3_000_000_000), 1_500_000_000, 500_000_000)
    group(top / "jobs", version, str(9_000_000_000), 2_000_000_000, 0)
    assert free_memory.memory() == 2_000_000_000
    group(top / "jobs", version, str(2_500_000_000), 2_000_000_000, 0)
    assert free_memory.memory() == 500_000_000


@pytest.mark.parametrize(("version", "limit"), [(2, "max"), (1, str(2**63 - 4096))])
def test_without_a_limit_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, limit: str
) -> None:
    inside(monkeypatch, tmp_path, "0::/" if version == 2 else "4:memory:/")
    group(tmp_path if version == 2 else tmp_path / "memory", version, limit, 10**9, 0)
    assert free_memory.memory() == 8_000_000 * 1024


def test_in_a_container_the_group_that_is_mounted_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside(monkeypatch, tmp_path, "4:memory:/docker/0a1b")  # the host's name for it
    group(tmp_path / "memory", 1, str(10**9), 0, 0)
    assert free_memory.memory() == 10**9


def test_the_disk_is_that_of_a_folder_which_is_not_there_yet(tmp_path: Path) -> None:
    there = free_memory.FreeResources.at(tmp_path / "runs" / "new")
    assert there.disk > 0 and there.memory > 0 and there.threads > 100 and there.cores >= 1


def test_a_control_group_bounds_the_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside(monkeypatch, tmp_path, "0::/")
    (tmp_path / "pids.max").write_text("77\n")
    assert free_memory.threads() == 77
