"""What moves keep: each number that is needed arrives, once, from who has it; over any Comm."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nnmpi.comm import Comm
from nnmpi.nn.place import Box, Place, Range, whole
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.model import moves
from nnmpi.parallel.model.moves import Holder, MovedTensor, MovePlan
from nnmpi.parallel.model.moving import arrivals
from nnmpi.parallel.model.nearest import plan_moves

SHAPES = ((), (1,), (7,), (0, 3), (5, 6), (1, 9), (4, 3, 5), (2, 3, 2, 4), (40, 70))
FILES = ("a", "b")


class Case(NamedTuple):
    """Whole arrays of some tensors, and who has and needs what of them."""

    tensors: list[MovedTensor]
    arrays: dict[str, np.ndarray]
    have: list[tuple[Holder, Range]]
    need: list[tuple[int, Range]]
    nodes: list[int]

    @property
    def plan(self) -> MovePlan:
        return plan_moves(self.tensors, self.have, self.need, self.nodes)

    def row(self, one: Range) -> np.ndarray:
        """The numbers of the box of a range, in the order of memory."""
        tensor = next(tensor for tensor in self.tensors if tensor.path == one.tensor)
        array = self.arrays[one.tensor][Place("", tensor.shape, one.box).slices]
        return array.transpose(tensor.axes).reshape(-1)


def random_case(seed: int, ranks: int, files: tuple[str, ...] = FILES) -> Case:
    """Parts of all kinds; each number is somewhere, and mostly in several places."""
    rng = np.random.default_rng(seed)
    holders = [*range(ranks), *files]
    tensors, arrays = [], {}
    have, need = list[tuple[Holder, Range]](), list[tuple[int, Range]]()
    for i, shape in enumerate(SHAPES):
        axes = tuple(int(k) for k in rng.permutation(len(shape)))
        dtype = np.dtype(rng.choice(["float32", "float64", "int64"]))
        tensors.append(MovedTensor(f"t{i}", shape, axes, dtype))
        arrays[f"t{i}"] = rng.integers(0, 1 << 30, shape).astype(dtype)
        for part in (*_divided(rng, whole(shape)), *(_box(rng, shape) for _ in range(2))):
            place = Place(f"t{i}", shape, part)
            for lo, hi in _stretches(rng, place.size):
                for h in rng.permutation(len(holders))[: rng.integers(1, 4)]:
                    have.append((holders[h], place.range(lo, hi)))
        for rank in range(ranks):
            place = Place(f"t{i}", shape, _box(rng, shape) if rng.random() < 0.7 else whole(shape))
            lo, hi = sorted(int(n) for n in rng.integers(0, place.size + 1, 2))
            need.append((rank, place.range(lo, hi)))
            if rng.random() < 0.5 and hi < place.size:
                need.append((rank, place.range(hi)))
    return Case(tensors, arrays, have, need, [r // 2 for r in range(ranks)])


def _divided(rng: np.random.Generator, part: Box) -> Iterator[Box]:
    """Parts that make up a part."""
    for k, (a, b) in enumerate(part):
        if b - a > 1 and rng.random() < 0.6:
            cut = int(rng.integers(a + 1, b))
            for side in ((a, cut), (cut, b)):
                yield from _divided(rng, (*part[:k], side, *part[k + 1 :]))
            return
    yield part


def _box(rng: np.random.Generator, shape: tuple[int, ...]) -> Box:
    sides = (sorted(int(k) for k in rng.integers(0, n + 1, 2)) for n in shape)
    return tuple((a, b) for a, b in sides)


def _stretches(rng: np.random.Generator, size: int) -> Iterator[tuple[int, int]]:
    cuts = sorted({0, size, *(int(n) for n in rng.integers(0, size + 1, rng.integers(0, 4)))})
    yield from pairwise(cuts)


def carried_out(case: Case, comm: Comm) -> MovePlan:
    """The plan, after it was carried out: each need is written once, and right."""
    plan, written = case.plan, Counter[Range]()
    last: dict[tuple[Holder, Range], int] = {}

    def read(holder: Holder, have: Range, lo: int, hi: int) -> np.ndarray:
        assert have.lo <= lo < hi <= have.hi
        assert holder in (comm.rank, *FILES)
        if isinstance(holder, str):
            assert lo >= last.get((holder, have), 0), "read twice, or not in order"
            last[holder, have] = hi
        return case.row(have)[lo:hi]

    for need, numbers in arrivals(plan, comm, read):
        written[need] += 1
        wanted = case.row(need)[need.lo : need.hi]
        np.testing.assert_array_equal(numbers, wanted, strict=True)
    assert written == Counter(need for rank, need in case.need if rank == comm.rank)
    return plan


# ---- the laws


def each_number_that_is_needed_arrives(comm: Comm) -> None:
    """Of parts of all kinds, from memory and from files."""
    for seed in range(4):
        carried_out(random_case(seed, comm.size), comm)


def the_price_of_a_plan_is_what_is_sent(comm: Comm) -> None:
    """In bytes and messages, with each rank."""
    for seed in range(2):
        case, ledger = random_case(seed, comm.size, files=()), comm.ledger
        ledger.reset()
        plan = carried_out(case, comm)
        found = plan.moved(comm.size)[comm.rank]
        assert found.sent == Traffic(sum(ledger.sent_bytes), sum(ledger.sent_messages))
        assert found.received == Traffic(sum(ledger.received_bytes), sum(ledger.received_messages))
        own = (need for rank, need in case.need if rank == comm.rank)
        wanted = sum(n.size * plan.tensors[n.tensor].dtype.itemsize for n in own)
        assert (found.needed, found.read) == (wanted, 0)
        comm.barrier()


def long_rows_travel_in_messages_of_bounded_length(comm: Comm) -> None:
    """Each rank has a share of each row of a matrix, and needs some whole rows."""
    n, p = 1600, comm.size
    cuts = [k * n // p for k in range(p + 1)]
    sides = [*pairwise(cuts)]
    shape = n, n
    case = Case(
        [MovedTensor("w", shape, (0, 1), np.dtype(np.float64))],
        {"w": np.random.default_rng(7).random(shape)},
        [(r, Place("w", shape, ((0, n), side)).range()) for r, side in enumerate(sides)],
        [(r, Place("w", shape, (side, (0, n))).range()) for r, side in enumerate(sides)],
        [0] * p,
    )
    plan = carried_out(case, comm)
    most = moves.longest_message(p)
    for pair in plan.between().values():
        lengths = [sum(one.nbytes for one in m) for m in plan.messages(pair, most)]
        assert all(length <= most for length in lengths)
        assert all(length > most - 8 for length in lengths[:-1])
