"""N ranks = 1 rank, as one table: a new strategy joins it by being listed.

Each row trains for ten steps in float64 on so many ranks, and on one, with uneven batches.
`test_conformance.py` runs the rows on threads, `test_conformance_mpi.py` over MPI.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from helpers.tensor import laws_summa
from helpers.training import laws_conv, laws_goals, laws_spatial
from helpers.training.graph_models import GRAPH_MODELS
from helpers.training.pipelined import CNN, MLP, MODELS, Options, equals, reference, run

from nnmpi.comm import Comm
from nnmpi.config import ORDERS

OPTIMIZERS: dict[str, Options] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "rmsprop": {"optimizer": "rmsprop", "weight_decay": 0.01},
}


class Row(NamedTuple):
    """A layout, what is trained in it, and how many ranks it takes.

    options   of the run of digits that the row is, if it is one: its model may be under "build"
    """

    name: str
    ranks: int
    trains_as_one_rank: Callable[[Comm], None]
    options: Options | None = None


def _row(name: str, layout: Options, case: Options) -> Row:
    row = _of_layout(name, layout, partial(_as_one_rank, layout, case))
    return row._replace(options=case | layout)


def _of_layout(name: str, layout: Options, law: Callable[[Comm], None]) -> Row:
    ranks = layout.get("dp", 1) * layout.get("pp", 1) * layout.get("tp", 1)
    where = " ".join(f"{option}={value}" for option, value in layout.items())
    return Row(f"{where} {name}", ranks, law)


def _as_one_rank(layout: Options, case: Options, comm: Comm) -> None:
    equals(comm, run(comm, **case, **layout), reference(**case))


def _data_parallel() -> Iterator[Row]:
    for dp, (name, case), allreduce in product((2, 3, 4), MODELS.items(), ("shared", "ring")):
        yield _row(name, {"dp": dp, "allreduce": allreduce}, case)


def _pipelines() -> Iterator[Row]:
    for pp, (name, case) in product((2, 3, 4), MODELS.items()):
        yield _row(name, {"pp": pp}, {**case, "micro_batches": 3})


def _tensor_parallel() -> Iterator[Row]:
    for tp, (name, case) in product((2, 3, 4), MODELS.items()):
        yield _row(name, {"tp": tp}, case)
        yield _row(f"{name} in micro-batches", {"tp": tp}, {**case, "micro_batches": 3})


def _zero() -> Iterator[Row]:
    for zero, dp, (name, optimizer) in product((1, 2, 3), (2, 3, 4), OPTIMIZERS.items()):
        layout = {"dp": dp, "zero": zero, "allreduce": "ring", "bucket_mb": 0.01}
        yield _row(f"digits-cnn {name}", layout, {**CNN, **optimizer})
    for zero, dp in product((1, 2, 3), (2, 3, 4)):
        layout = {"dp": dp, "zero": zero, "bucket_mb": 0.01}
        yield _row("mlp in micro-batches", layout, {**MLP, "micro_batches": 3})


def _three_axes() -> Iterator[Row]:
    for zero, (name, case) in product((0, 1, 2, 3), MODELS.items()):
        layout = {"dp": 2, "pp": 2, "tp": 2, "zero": zero}
        yield _row(name, layout, {**case, "micro_batches": 2})
    for order in ORDERS:
        layout = {"dp": 2, "pp": 2, "tp": 2, "zero": 1, "order": order}
        yield _row("mlp", layout, {**MLP, "micro_batches": 2})
    for zero, axes in product((0, 3), ({"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"pp": 2, "tp": 2})):
        if zero == 0 or "dp" in axes:
            yield _row("digits-cnn", {**axes, "zero": zero}, {**CNN, "micro_batches": 2})


def _convolutions() -> Iterator[Row]:
    layouts: list[Options] = [{axis: n} for axis, n in product(("dp", "pp", "tp"), (2, 3))]
    for layout in (*layouts, {"dp": 2, "zero": 3, "bucket_mb": 0.001}):
        law = partial(laws_conv.every_layer_trains_as_one_rank, layout)
        yield _of_layout("every convolution and pool", layout, law)


def _graphs() -> Iterator[Row]:
    """Residual connections, and layers side by side; cuts may cross them."""
    layouts: list[Options] = [
        *({"tp": tp} for tp in (2, 3, 4)),
        *({"pp": pp, "micro_batches": 3} for pp in (2, 3)),
        *({"dp": dp, "zero": 3, "bucket_mb": 0.001} for dp in (2, 3)),
        *({"dp": 2, axis: 2, "micro_batches": 2} for axis in ("pp", "tp")),
        *({"dp": 2, "pp": 2, "tp": 2, "zero": zero, "micro_batches": 2} for zero in (0, 3)),
    ]
    for layout, (name, build) in product(layouts, GRAPH_MODELS.items()):
        same = {k: v for k, v in layout.items() if k == "micro_batches"}
        others = {k: v for k, v in layout.items() if k not in same}
        yield _row(name, others, {"build": build, **same})


def _samples() -> Iterator[Row]:
    """Indices, labels of positions, several inputs."""
    layouts: list[Options] = [
        *({"dp": dp, "allreduce": how} for dp, how in product((2, 3), ("shared", "ring"))),
        *({"dp": 2, "zero": zero, "bucket_mb": 0.001} for zero in (1, 2, 3)),
        *({"pp": 2}, {"dp": 2, "pp": 2, "schedule": "zb-h1"}, {"tp": 2}, {"dp": 2, "tp": 2}),
    ]
    goals = ("embedding", "positions", "words", "a tuple", "a dict")
    for layout, goal in product(layouts, goals):
        if laws_goals.GOALS[goal].shards or "tp" not in layout:
            same = {"micro_batches": 3} if "pp" in layout else {}
            law = partial(laws_goals.trains_as_one_rank, goal=goal, layout=layout, same=same)
            yield _of_layout(goal, layout, law)


def _layers() -> Iterator[Row]:
    for n in (2, 3):
        yield Row(f"spatial={n} cnn", n, laws_spatial.training_equals_one_rank)
    for n in (4, 6):  # 2 x 2 and 2 x 3 among them
        yield Row(f"summa={n} mlp, every grid", n, laws_summa.a_stack_trains_as_one_rank)


FAMILIES: dict[str, Callable[[], Iterator[Row]]] = {
    "data parallel": _data_parallel,
    "pipelines": _pipelines,
    "tensor parallel": _tensor_parallel,
    "zero": _zero,
    "three axes": _three_axes,
    "convolutions": _convolutions,
    "graphs": _graphs,
    "samples of any kind": _samples,
    "layers of the library": _layers,
}


def rows(family: str) -> list[Row]:
    """The rows of a family; their names differ."""
    found = [*FAMILIES[family]()]
    assert len({row.name for row in found}) == len(found)
    return found


def family_trains_as_one_rank(family: str, comm: Comm) -> None:
    """All rows of a family that take as many ranks as there are; of 8 ranks, 6 are tried too."""
    for row in rows(family):
        if row.ranks in (comm.size, comm.size - 2 if comm.size == 8 else 0):
            part = comm.split(0 if comm.rank < row.ranks else None)
            if part is not None:
                row.trains_as_one_rank(part)
                part.free()
