"""The limits that Linux control groups (containers, Slurm, systemd) put on this process."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""The root of the system's files; other folders are for tests."""


def cpu_quota(root: Path = ROOT) -> float | None:
    """The CPU time per time that this process may use (1.5: one and a half cores), if limited.

    cpu.max of version 2, cpu.cfs_quota_us over cpu.cfs_period_us of version 1.
    """
    quotas = []
    for folder in _folders(root, "cpu"):
        words = _read(folder / "cpu.max").split() or [
            *_read(folder / "cpu.cfs_quota_us").split(),
            *_read(folder / "cpu.cfs_period_us").split(),
        ]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))  # without a limit: "max" or -1
    return min(quotas, default=None)


def cpuset_size(root: Path = ROOT) -> int | None:
    """The number of CPUs that this process may be scheduled on, if control groups limit them."""
    names = "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"
    sizes = [
        sum(_length(part) for part in cpus.split(","))
        for folder in _folders(root, "cpuset")
        if (cpus := next(filter(None, (_read(folder / name) for name in names)), ""))
    ]
    return min(filter(None, sizes), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """The bytes of memory that this process may take, if control groups limit them.

    memory.max of version 2, memory.limit_in_bytes of version 1, which is huge without a limit.
    """
    names = "memory.max", "memory.limit_in_bytes"
    words = (_read(folder / name) for folder in _folders(root, "memory") for name in names)
    return min((int(word) for word in words if word.isdecimal()), default=None)


def memory_available(root: Path = ROOT) -> int | None:
    """The bytes of memory that this process may still take; None where the system does not say.

    Of a group: its limit, less what it uses apart from files that need not be kept.
    """
    rooms = [1024 * n for n in [_entry(root / "proc/meminfo", "MemAvailable:")] if n is not None]
    for folder in _folders(root, "memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            words = _read(folder / limit), _read(folder / used)
            if all(word.isdecimal() for word in words):
                idle = _entry(folder / "memory.stat", cached) or 0
                rooms.append(max(int(words[0]) - int(words[1]) + idle, 0))
    return min(rooms, default=None)


def _entry(path: Path, name: str) -> int | None:
    """The number behind a name, in a file of such lines."""
    rows = (line.split() for line in _read(path).splitlines())
    return next((int(row[1]) for row in rows if row[:1] == [name] and row[1].isdecimal()), None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of all groups around it.

    A line of the membership file is `number:controllers:path`; version 2 names no controllers.
    Inside a container the mount may begin at the container's own group, so the path need not exist.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = PurePosixPath(path.lstrip("/"))
            yield from (base / part for part in (group, *group.parents))


def _length(part: str) -> int:
    """The number of CPUs in `3` or `4-7`; 0 in anything else."""
    first, _, last = part.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        return 0
    return int(last or first) - int(first) + 1


def _read(path: Path) -> str:
    """The content of a file, empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
