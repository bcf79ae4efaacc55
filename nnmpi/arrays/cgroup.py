"""Limits that Linux control groups (containers, Slurm, systemd) put on this process."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""The root of the file system; tests pass another folder."""


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns the CPU time per second that this process may use (1.5: one and a half cores); None
    without a limit. `root` contains /proc and /sys: "/" except in tests.

    Reads cpu.max of version 2, and cpu.cfs_quota_us over cpu.cfs_period_us of version 1.
    """
    quotas = []
    for folder in _folders(root, "cpu"):
        words = _read(folder / "cpu.max").split() or [
            *_read(folder / "cpu.cfs_quota_us").split(),
            *_read(folder / "cpu.cfs_period_us").split(),
        ]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))  # an unlimited group has "max" or -1
    return min(quotas, default=None)


def cpuset_size(root: Path = ROOT) -> int | None:
    """Returns how many CPUs control groups let this process use; None without a limit."""
    names = "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"
    sizes = [
        len(cpu_list(cpus))
        for folder in _folders(root, "cpuset")
        if (cpus := next(filter(None, (_read(folder / name) for name in names)), ""))
    ]
    return min(filter(None, sizes), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Returns the bytes of memory that control groups allow this process; None without a limit.

    Reads memory.max of version 2, and memory.limit_in_bytes of version 1, huge if unlimited.
    """
    names = "memory.max", "memory.limit_in_bytes"
    words = (_read(folder / name) for folder in _folders(root, "memory") for name in names)
    return min((int(word) for word in words if word.isdecimal()), default=None)


def memory_available(root: Path = ROOT) -> int | None:
    """Returns the bytes of memory that this process may still take; None if unknown.

    This is the minimum of the system's MemAvailable and, for each control group, its limit minus
    its usage, in which cached file pages that the system can drop do not count.
    """
    limits = [1024 * n for n in [_entry(root / "proc/meminfo", "MemAvailable:")] if n is not None]
    for folder in _folders(root, "memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            words = _read(folder / limit), _read(folder / used)
            if all(word.isdecimal() for word in words):
                idle = _entry(folder / "memory.stat", cached) or 0
                limits.append(max(int(words[0]) - int(words[1]) + idle, 0))
    return min(limits, default=None)


def _entry(path: Path, name: str) -> int | None:
    """Returns the number after `name` at a line's beginning in a file, or None."""
    rows = (line.split() for line in _read(path).splitlines())
    return next((int(row[1]) for row in rows if row[:1] == [name] and row[1].isdecimal()), None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control group and of all groups around it, for a
    controller such as "cpu" or "memory".

    A line of /proc/self/cgroup is `number:controllers:path`; version 2 names no controllers. Inside
    a container the mount may begin at the container's own group, so the path need not exist.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = PurePosixPath(path.lstrip("/"))
            yield from (base / part for part in (group, *group.parents))


def cpu_list(text: str) -> frozenset[int]:
    """Returns the CPUs in a text such as `0-3,8`; parts of any other form are ignored."""
    ends = (part.strip().partition("-") for part in text.split(","))
    return frozenset(
        cpu
        for first, _, last in ends
        if first.isdecimal() and (last or first).isdecimal()
        for cpu in range(int(first), int(last or first) + 1)
    )


def _read(path: Path) -> str:
    """Reads a file as text; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
