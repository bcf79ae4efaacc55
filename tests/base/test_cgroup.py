"""The cores of a rank: shares of what affinity and control groups leave to the ranks of a node."""

import os
from pathlib import Path

import pytest

from nnmpi.arrays import blas
from nnmpi.arrays.cgroup import cpu_quota, cpuset_size, memory_limit

V1 = "5:cpuset:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n"


def cgroup(folder: Path, membership: str, contents: dict[str, str]) -> Path:
    """Files as the kernel shows them."""
    for name, content in contents.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(membership)
    return folder


LIMITS: dict[str, tuple[str, dict[str, str], float | None, int | None]] = {
    "version 2": ("0::/\n", {"cpu.max": "250000 100000"}, 2.5, None),
    "version 2 without a limit": ("0::/\n", {"cpu.max": "max 100000"}, None, None),
    "version 2, the group around it": (
        "0::/pod/box\n",
        {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "max 100000"},
        3.0,
        None,
    ),
    "version 2, the smallest counts": (
        "0::/pod/box\n",
        {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "400000 100000"},
        3.0,
        None,
    ),
    "version 2 in a container": ("0::/../elsewhere\n", {"cpu.max": "50000 100000"}, 0.5, None),
    "version 1": (
        V1,
        {"cpu/job/cpu.cfs_quota_us": "600000", "cpu/job/cpu.cfs_period_us": "100000"},
        6.0,
        None,
    ),
    "version 1 without a limit": (
        V1,
        {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
        None,
        None,
    ),
    "version 1 in a container": (
        V1,
        {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"},
        1.5,
        None,
    ),
    "a cpuset of version 2": ("0::/\n", {"cpuset.cpus.effective": "0-2,8,10-11"}, None, 6),
    "a cpuset of version 1": (V1, {"cpuset/job/cpuset.cpus": "4-7"}, None, 4),
    "an empty cpuset means that of the group around it": (
        "0::/box\n",
        {"box/cpuset.cpus.effective": "", "cpuset.cpus.effective": "0-1"},
        None,
        2,
    ),
    "nonsense": ("0::/\n", {"cpu.max": "some 0"}, None, None),
    "no files": ("", {}, None, None),
}


@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
def test_limits_are_read_from_both_versions(
    case: tuple[str, dict[str, str], float | None, int | None], tmp_path: Path
) -> None:
    membership, contents, quota, size = case
    files = cgroup(tmp_path, membership, contents)
    assert (cpu_quota(files), cpuset_size(files)) == (quota, size)


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), cpuset_size(tmp_path)) == (None, None)


def test_cores_of_this_machine() -> None:
    assert 1 <= blas.cores(1) <= (os.cpu_count() or 1)
    assert blas.cores(10**6) == 1


@pytest.mark.parametrize(
    ("membership", "contents", "wanted"),
    [
        ("0::/a/b\n", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000),
        ("0::/a/b\n", {"a/memory.max": "1000", "a/b/memory.max": "900"}, 900),
        ("3:memory:/job\n", {"memory/job/memory.limit_in_bytes": "700"}, 700),
        ("0::/\n", {"memory.max": "max"}, None),
    ],
)
def test_memory_limit(
    tmp_path: Path, membership: str, contents: dict[str, str], wanted: int | None
) -> None:
    assert memory_limit(cgroup(tmp_path, membership, contents)) == wanted
