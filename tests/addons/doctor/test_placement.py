"""What `nnmpi doctor --placement` says of the cores of ranks: no advice if they are well placed."""

import math
from pathlib import Path

import pytest
from helpers import mpijob

from nnmpi.addons.doctor import placement
from nnmpi.addons.doctor.placement import Cpus, RankCores
from nnmpi.arrays import blas, cgroup
from nnmpi.comm import comm_self

MACHINE = 16
ALL = Cpus(range(MACHINE))
NODES = Cpus(range(8)), Cpus(range(8, 16))


def rank(bound: Cpus = ALL, launcher: Cpus = ALL, threads: int = 1, **other: object) -> RankCores:
    """A rank on a host of 16 cores, 8 in each of 2 NUMA nodes."""
    plain = RankCores(bound, launcher, "node7", MACHINE, math.inf, NODES, threads)
    return plain._replace(**other)


def on(*cpus: int) -> Cpus:
    return Cpus(cpus)


GOOD = {
    "a rank alone": [rank()],
    "not bound": [rank()] * 8,
    "more ranks than cores": [rank()] * 40,
    "each on a core": [rank(on(k)) for k in range(16)],
    "each on a NUMA node": [rank(NODES[0])] * 4 + [rank(NODES[1])] * 4,
    "fewer ranks than NUMA nodes": [rank(Cpus(range(12)))],
    "as many threads as cores": [rank(threads=8)] * 2,
    "four threads on four cores": [rank(Cpus(range(k, k + 4)), threads=4) for k in (0, 4, 8, 12)],
    "the machine has one core": [rank(on(0), on(0), machine=1, nodes=(on(0),))] * 4,
    "a container of four cores": [rank(on(0, 1, 2, 3), on(0, 1, 2, 3))] * 8,
    "one core each on four hosts": [rank(on(0), host=f"node{k}") for k in range(4)],
    "the system does not tell": [rank(Cpus(), Cpus(), nodes=())] * 4,
}

SPREAD = "start them with mpirun --bind-to core --map-by core"
SLOWER = "memory of another node is slower: start them with mpirun --map-by numa --bind-to numa"
BAD = {
    "on one core": (
        [rank(on(3))] * 4,
        f"4 ranks share core 3 of node7, and mpirun may use 16: {SPREAD}",
    ),
    "two of three on one core": (
        [rank(on(3)), rank(on(4)), rank(on(3))],
        f"2 ranks share core 3 of node7, and mpirun may use 16: {SPREAD}",
    ),
    "bound, though there are too many": (
        [rank(on(k % 2), on(0, 1)) for k in range(4)],
        "2 ranks share core 0 of node7, and mpirun may use 2: start them with mpirun --bind-to "
        "none",
    ),
    "six on four cores": (
        [rank(on(0, 1, 2, 3))] * 6,
        f"6 ranks share cores 0-3 of node7, and mpirun may use 16: {SPREAD}",
    ),
    "started on one core": (
        [rank(on(5), on(5))] * 2,
        "2 ranks share core 5 of node7, and mpirun may use no other of 16: allow it more (taskset, "
        "the cpuset of a container, srun --cpus-per-task)",
    ),
    "threads": (
        [rank(threads=8)] * 4,
        "4 ranks with 32 threads of BLAS in all on 16 cores of node7: set OMP_NUM_THREADS=4",
    ),
    "threads of one rank": (
        [rank(threads=64)],
        "1 rank with 64 threads of BLAS in all on 16 cores of node7: set OMP_NUM_THREADS=16",
    ),
    "threads on cores to which ranks are bound": (
        [rank(on(0), threads=8), rank(on(1), threads=8)],
        "2 ranks with 16 threads of BLAS in all on 2 cores of node7: set OMP_NUM_THREADS=1, or "
        "mpirun --map-by slot:PE=8",
    ),
    "threads beyond a quota": (
        [rank(threads=4, quota=2.5)] * 2,
        "2 ranks with 8 threads of BLAS in all on 2 cores of node7: set OMP_NUM_THREADS=1",
    ),
    "across NUMA nodes": (
        [rank(Cpus(range(4 * k + 2, 4 * k + 6))) for k in range(3)],
        f"1 rank bound across NUMA nodes of node7 (rank 1 to cores 6-9), and {SLOWER}",
    ),
    "on two sockets, with a rank for each": (
        [rank(Cpus(range(1, 16)))] * 2,
        f"2 ranks bound across NUMA nodes of node7 (rank 0 to cores 1-15), and {SLOWER}",
    ),
}


@pytest.mark.parametrize("ranks", GOOD.values(), ids=GOOD)
def test_nothing_is_said_of_good_places(ranks: list[RankCores]) -> None:
    assert placement.advice(ranks) == []


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_each_mistake_gives_a_line(case: tuple[list[RankCores], str]) -> None:
    ranks, line = case
    assert placement.advice(ranks) == [line]
    well = [rank(host="node1")] * 2
    assert placement.advice([*well, *ranks]) == [
        line.replace("(rank 1 to", "(rank 3 to").replace("(rank 0 to", "(rank 2 to")
    ]


@pytest.mark.parametrize(
    ("of_rank", "status", "said"),
    [
        (rank(on(0, 1, 2)), 0, ["rank 0  node7, cores 0-2", "all is well"]),
        (rank(Cpus()), 0, ["rank 0  node7, cores that the system does not tell", "all is well"]),
        (
            rank(on(5), on(5), threads=8),
            1,
            [
                "rank 0  node7, core 5",
                "-> 1 rank with 8 threads of BLAS in all on 1 core of node7: set OMP_NUM_THREADS=1",
            ],
        ),
    ],
)
def test_ranks_and_advice_are_printed(
    of_rank: RankCores,
    status: int,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(placement, "cores_here", lambda: of_rank)
    assert placement.tell(comm_self()) == status
    assert capsys.readouterr().out.splitlines() == said


BOUND = """
import os, sys
from nnmpi import doctor
from nnmpi.comm import ended
os.sched_setaffinity(0, {min(os.sched_getaffinity(os.getppid()))})
sys.exit(ended(doctor.main(["--placement"])))
"""


@pytest.mark.skipif(len(blas.affinity(0)) < 2, reason="it needs two cores")
def test_two_ranks_on_one_core_say_so_once(tmp_path: Path) -> None:
    (tmp_path / "bound.py").write_text(BOUND)
    done = mpijob.run(2, tmp_path / "bound.py")
    assert done.status == 1, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("-> ")]
    assert "2 ranks share core " in line
    assert line.endswith("start them with mpirun --bind-to core --map-by core")


def test_numa_nodes_with_cores_are_read(tmp_path: Path) -> None:
    for node, cpus in {0: "0-3,8\n", 1: "4-7\n", 2: "\n"}.items():  # the last has memory only
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    assert placement.numa_nodes(tmp_path) == (on(0, 1, 2, 3, 8), on(4, 5, 6, 7))
    assert placement.numa_nodes(tmp_path / "none") == ()


def test_lists_of_cpus_are_parsed() -> None:
    assert cgroup.cpu_list("0-2, 7,9-9") == {0, 1, 2, 7, 9}
    assert cgroup.cpu_list("x,3-,-4,") == {3}


@pytest.mark.parametrize(
    ("words", "threads"), [("8", 8), ("4,2", 4), ("", 1), ("many", 1), ("0", 1)]
)
def test_the_threads_that_a_user_has_set(
    words: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", words)
    assert placement.cores_here().threads == threads
