"""Layouts: which ranks work together, who serves, and who counts a number that several have."""

from typing import Any

import numpy as np
from helpers.datafiles import refused

from nnmpi import Config
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.mesh import AXES, Mesh


def groups(comm: Comm, config: Config) -> tuple[Any, ...]:
    layout = Layout.of(config, comm)
    sizes = {axis: (group.rank, group.size) for axis, group in layout.axis.items()}
    found = layout.workers, layout.servers, layout.serves, sizes, layout.server_group.size
    layout.free()
    return found


def test_all_ranks_are_along_dp() -> None:
    alone = {axis.name: (0, 1) for axis in AXES}
    for r, found in enumerate(threads.run(3, groups, Config())):
        assert found == (3, 0, False, alone | {"dp": (r, 3)}, 1)


def test_the_last_ranks_serve() -> None:
    found = threads.run(5, groups, Config(servers=2))
    assert [f[2] for f in found] == [False] * 3 + [True] * 2
    assert [f[3]["dp"] for f in found[:3]] == [(0, 3), (1, 3), (2, 3)]
    assert [f[4] for f in found] == [1, 1, 1, 2, 2]
    assert {f[:2] for f in found} == {(3, 2)}


def test_ranks_that_do_not_fit_are_refused() -> None:
    with refused("dp 2 does not fit 3 ranks", "mpirun -n 2"):
        threads.run(3, groups, Config(dp=2))
    with refused("bsp with 3 servers needs at least 4 ranks, got 3", "mpirun -n 4", "--servers 0"):
        threads.run(3, groups, Config(servers=3))


def test_a_mesh_of_two_axes_has_a_group_along_each() -> None:
    """dp 2 x pp 3: rank = 3 dp + pp."""

    def rank(comm: Comm) -> tuple[Any, ...]:
        layout = Layout.on(Mesh({"dp": 2, "pp": 3, "tp": 1}), comm)
        members = np.full((4, 6), -1)
        groups = (layout.axis["dp"], layout.axis["pp"], layout.axis["tp"], layout.model)
        for row, group in zip(members, groups, strict=True):
            own = np.full(group.size, comm.rank)
            group.all_gather(own)
            row[: group.size] = own
        layout.free()
        return tuple(tuple(r for r in row if r >= 0) for row in members.tolist())

    for r, (dp, pp, tp, model) in enumerate(threads.run(6, rank)):
        assert dp == (r % 3, r % 3 + 3)
        assert pp == model == tuple(range(r // 3 * 3, r // 3 * 3 + 3))
        assert tp == (r,)


def test_ranks_along_the_first_axis_of_order_are_consecutive() -> None:
    for order, groups in (
        ("tp,dp,pp", {"tp": (4, 5), "dp": (4, 6), "pp": (0, 4)}),
        ("pp,tp,dp", {"pp": (4, 5), "tp": (4, 6), "dp": (0, 4)}),
    ):
        mesh = Mesh.filled(8, {"dp": 2, "pp": 2, "tp": 2}, order)
        assert {axis: mesh.group(4, axis) for axis in groups} == groups
    with refused("dp 2 x pp 2 x tp 2 does not fit 6 ranks", "mpirun -n 8"):
        Mesh.filled(6, {"dp": 2, "pp": 2, "tp": 2})
