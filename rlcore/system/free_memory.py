"""Measurement of the resources that this process can use: memory, disk space, threads, CPU cores."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlcore.system.devices import cores

CGROUPS = Path("/sys/fs/cgroup")
UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
UNLIMITED = 1 << 60  # bytes; version 1 of control groups reports a number near 2⁶³ if there is no limit


@dataclass(frozen=True)
class FreeResources:
    """Resources that this process can use.

    Attributes:
        memory: available memory in bytes.
        disk: free disk space in bytes.
        threads: maximum number of threads.
        cores: number of CPU cores.
        device: free memory of one GPU in bytes; None if it was not measured.
    """

    memory: int
    disk: int
    threads: int
    cores: int
    device: int | None = None

    @staticmethod
    def at(folder: Path) -> FreeResources:
        """Measure the resources, except GPU memory; `disk` is the free space for a folder, which need not exist yet."""
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        return FreeResources(memory(), shutil.disk_usage(there).free, threads(), cores())


def memory() -> int:
    """Return the memory in bytes that this process can still use without swapping.

    It is the smallest of the memory available on the machine and in the control groups (cgroups) of this process.
    """
    return min([_available(), *(room for group in _groups("memory") if (room := _group_memory(group)) is not None)])


def threads() -> int:
    """Return the maximum number of threads: the smallest limit of user, system, memory mappings and control groups."""
    limits = [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    limits += [_number(Path(f"/proc/sys/kernel/{name}")) for name in ("threads-max", "pid_max")]
    mappings = _number(Path("/proc/sys/vm/max_map_count"))
    limits += [mappings // 2 if mappings else None]  # the stack of a thread and its guard
    limits += [_number(group / "pids.max") for group in _groups("pids")]
    return min(limit for limit in limits if limit is not None and limit > 0)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups (cgroup version 1 or 2), from the innermost to the root.

    `controller` is the controlled resource, such as "memory" or "pids".
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        place = root / name.lstrip("/")
        # In a container the name may be that of the host, while the container's own group is mounted at the root.
        yield from (group for group in (place, *place.parents) if group.is_relative_to(root) and group.is_dir())


def _group_memory(group: Path) -> int | None:
    """Return the memory in bytes that a control group can still use; None if it has no limit.

    Inactive file cache of the group counts as free.
    """
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed, taken = _number(group / limit), _number(group / used)
        if allowed is not None and taken is not None and allowed < UNLIMITED:
            return max(0, allowed - taken + _entry(group / "memory.stat", cache))
    return None


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or contains `max` (no limit)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _entry(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for key, _, value in (line.partition(" ") for line in lines) if key == name), 0)


def size(count: int) -> str:
    """Format a number of bytes with a decimal unit, for example `1.5 GB`."""
    number, unit = float(count), 0
    while number >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    if number >= 999.5:
        return f"more than 999 {UNITS[-1]}"
    return f"{number:.{1 if number < 10 and unit else 0}f} {UNITS[unit]}"
