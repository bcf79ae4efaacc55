"""The all-reduces that `auto` takes: by the places of ranks and the bytes, not by a clock."""

import numpy as np
import pytest

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import FAR, Network, price
from nnmpi.comm import Comm, thread_ranks
from nnmpi.comm.allreduce.dispatch import SHORT, for_size
from nnmpi.comm.transport.threads import ThreadTransport

BOTH = for_size(SHORT), for_size(SHORT + 1)


@pytest.mark.parametrize(
    ("p", "per_node", "names"),
    [
        (4, None, ("shared", "shared")),
        (4, 2, ("hierarchical", "hierarchical")),
        (3, 2, ("hierarchical", "hierarchical")),
        (4, 1, BOTH),
        (1, None, ("ring", "ring")),
    ],
)
def test_the_places_of_ranks_decide_and_between_nodes_the_size(
    p: int, per_node: int | None, names: tuple[str, str]
) -> None:
    def chosen(comm: Comm) -> tuple[str, str]:
        return comm.fastest(SHORT), comm.fastest(SHORT + 1)

    assert thread_ranks.run(p, chosen, per_node=per_node) == [names] * p


@pytest.mark.parametrize("p", [4, 8, 16, 64])
def test_each_is_the_faster_on_its_side_of_the_limit(p: int) -> None:
    for nbytes in (SHORT / 2, 2 * SHORT):
        seconds = {name: price(ALGORITHMS[name], p, nbytes, Network(FAR)).seconds for name in BOTH}
        assert min(seconds, key=seconds.__getitem__) == for_size(int(nbytes))


def test_a_sum_without_room_in_shared_memory_goes_by_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ThreadTransport, "free_memory", lambda transport: 100_000)

    def chosen(comm: Comm) -> list[str]:
        few, many = np.ones(100), np.ones(100_000)
        names = []
        for x in (few, many, few):
            comm.all_reduce(x)
            names.append(comm.fastest(x.nbytes))
        assert few.max() == comm.size**2
        assert many.min() == comm.size
        return names

    assert thread_ranks.run(3, chosen) == [["shared", for_size(800_000), for_size(800)]] * 3
