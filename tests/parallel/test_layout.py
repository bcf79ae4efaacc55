"""Layouts: which ranks work together, who serves, and who counts a number that several have."""

from typing import Any

import pytest
from datafiles import refused

from nnmpi import Config
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.mesh import Mesh
from nnmpi.nn.place import Place
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.state import StepState


def groups(comm: Comm, config: Config) -> tuple[Any, ...]:
    layout = Layout.of(config, comm)
    sizes = {axis: (group.rank, group.size) for axis, group in layout.axis.items()}
    found = layout.workers, layout.servers, layout.serves, sizes, layout.server_group.size
    layout.free()
    return found


def test_all_ranks_are_along_dp() -> None:
    one = (0, 1)
    for r, found in enumerate(threads.run(3, groups, Config())):
        assert found == (3, 0, False, {"dp": (r, 3), "pp": one, "tp": one}, 1)


def test_the_last_ranks_serve() -> None:
    found = threads.run(5, groups, Config(servers=2))
    assert [f[2] for f in found] == [False] * 3 + [True] * 2
    assert [f[3]["dp"] for f in found[:3]] == [(0, 3), (1, 3), (2, 3)]
    assert [f[4] for f in found] == [1, 1, 1, 2, 2]
    assert {f[:2] for f in found} == {(3, 2)}


def test_another_number_along_dp_is_refused() -> None:
    with refused("dp 2 does not fit 3 ranks", "mpirun -n 2"):
        threads.run(3, groups, Config(dp=2))


def test_a_duplicate_has_messages_of_its_own() -> None:
    import numpy as np

    def rank(comm: Comm) -> float:
        copy, a, b = duplicate(comm), np.ones(1), np.full(1, 10.0)
        works = [comm.start(a, "ring"), copy.start(b, "ring")]
        for work in works if comm.rank else works[::-1]:
            work.wait()
        return float(a[0] + b[0])

    assert threads.run(2, rank) == [22.0, 22.0]


@pytest.mark.parametrize(
    ("copies", "counting"),
    [(("dp", "tp"), [0, 2]), (("dp",), [0, 1, 2, 3]), (("dp", "tp", "pp"), [0])],
    ids=str,
)
def test_of_the_ranks_with_a_copy_the_first_counts_it(
    copies: tuple[str, ...], counting: list[int]
) -> None:
    """On 2 stages of 2 ranks each: an ordinary layer, one that is cut over tp, a tied weight."""
    place = Place("w", (2,), ((0, 2),), copies)

    def counts(comm: Comm) -> bool:
        mesh = Mesh({"dp": 1, "pp": 2, "tp": 2})
        return Layout(mesh, 0, comm, {}, comm, comm).counts(place)

    found = threads.run(4, counts)
    assert [r for r, one in enumerate(found) if one] == counting


def test_a_state_counts_steps_epochs_and_batches() -> None:
    state, seen = StepState(), []
    for _ in range(5):
        seen.append(tuple(state))
        state = state.next(batches=2)
    assert seen == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0)]
