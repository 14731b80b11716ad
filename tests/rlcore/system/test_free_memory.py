"""Free resources of the machine, limited by control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.system import free_memory

GROUPS = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def write_control_group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_name, used_name, cache_name = GROUPS[version]
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / used_name).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 3\n{cache_name} {cache}\n")


def patch_system_files(monkeypatch: pytest.MonkeyPatch, root: Path, line: str) -> None:
    monkeypatch.setattr(free_memory, "CGROUPS", root)
    real = Path.read_text
    contents = {"/proc/self/cgroup": f"{line}\n", "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000000 kB\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: contents.get(str(path)) or real(path, *rest))


@pytest.mark.parametrize(("version", "line"), [(2, "0::/jobs/mine"), (1, "4:cpu,memory:/jobs/mine")])
def test_memory_uses_narrowest_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, line: str
) -> None:
    top = tmp_path if version == 2 else tmp_path / "memory"
    patch_system_files(monkeypatch, tmp_path, line)
    write_control_group(top / "jobs" / "mine", version, str(3_000_000_000), 1_500_000_000, 500_000_000)
    write_control_group(top / "jobs", version, str(9_000_000_000), 2_000_000_000, 0)
    assert free_memory.memory() == 2_000_000_000
    write_control_group(top / "jobs", version, str(2_500_000_000), 2_000_000_000, 0)
    assert free_memory.memory() == 500_000_000


@pytest.mark.parametrize(("version", "limit"), [(2, "max"), (1, str(2**63 - 4096))])
def test_memory_without_limit_is_memory_of_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, limit: str
) -> None:
    patch_system_files(monkeypatch, tmp_path, "0::/" if version == 2 else "4:memory:/")
    write_control_group(tmp_path if version == 2 else tmp_path / "memory", version, limit, 10**9, 0)
    assert free_memory.memory() == 8_000_000 * 1024


def test_memory_in_container_uses_mounted_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_system_files(monkeypatch, tmp_path, "4:memory:/docker/0a1b")  # the host's name for it
    write_control_group(tmp_path / "memory", 1, str(10**9), 0, 0)
    assert free_memory.memory() == 10**9


def test_free_resources_accepts_missing_folder(tmp_path: Path) -> None:
    resources = free_memory.FreeResources.at(tmp_path / "runs" / "new")
    assert resources.disk > 0 and resources.memory > 0 and resources.threads > 100 and resources.cores >= 1


def test_threads_are_limited_by_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_system_files(monkeypatch, tmp_path, "0::/")
    (tmp_path / "pids.max").write_text("77\n")
    assert free_memory.threads() == 77
