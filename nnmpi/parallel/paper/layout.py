"""The Comms of a rank on paper, as a run would make them."""

from typing import Any

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.mesh import AXES, BATCH, MODEL, REPLICAS
from nnmpi.parallel.paper.comm import PaperComm, Ranks
from nnmpi.parallel.paper.log import StepLog


def ranks_on_paper(a: Arrangement, rank: int) -> Ranks:
    """What the Comms of a rank share."""
    narrow = a.is_mixed and a.sums_dtype is None
    return Ranks(rank, a.cluster, narrow, a.sums_by, StepLog(a.store.zero))


def layout_on_paper(a: Arrangement, ranks: Ranks) -> Layout:
    """The communicators of a rank, by axis."""
    mesh, rank = a.mesh, ranks.rank

    def group(name: str, *axes: str) -> Any:
        return PaperComm(mesh.group(rank, *axes) if rank < mesh.size else (rank,), name, ranks)

    axis = {row.name: group(row.name, row.name) for row in AXES}
    batch, replicas = (
        axis["dp"] if mesh.count(*axes) == mesh.count("dp") else group("dp", *axes)
        for axes in (BATCH, REPLICAS)
    )
    everyone: Any = PaperComm(range(a.ranks), "all", ranks)
    alone: Any = PaperComm((rank,), "all", ranks)
    return Layout(
        *(mesh, a.servers, everyone, axis, batch, replicas, group("model", *MODEL), alone),
        ranks.narrow,
    )
