"""N ranks = 1 rank, as one table: a new strategy joins it by being listed.

A synchronous layout trains as one rank would, for any batch size and any number of ranks:

- Samples: a batch is cut into micro-batches, and each of these among the ranks, only by the
  position of a sample in the batch. Parts may be uneven, and a rank may have no sample at all.
- Loss and gradients are those of the sum over all ranks, divided once by the size of the batch;
  with class weights or ignored labels by the sum of the weights of its labels. If all are ignored,
  both are 0. Metrics are sums and counts.
- Random numbers are a function of seed, step, layer and sample, never of the rank.
- BatchNorm takes each rank's count, mean and sum of squared deviations together, and sums the two
  sums of its backward pass over the ranks.
- Clipping takes the norm over all ranks. A step whose gradient is not finite is skipped by all of
  them; a loss that is not finite ends the run on all.
- Copies of a parameter have equal bits on all ranks, after every step.

Each row trains for ten steps in float64 on so many ranks, and on one, with uneven batches.
`test_conformance.py` runs a sample of the rows on threads, in which each family has each of its
models and options, and each value of an option is somewhere; `test_strict_conformance.py` runs some
with ranks on a device, and the table of laws others over MPI. With --all, all rows run on threads,
and all on a device.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from math import prod
from typing import NamedTuple

from helpers.tensor.laws_tensor import UNEVEN
from helpers.training import (
    laws_goals,
    laws_halves,
    laws_language,
    laws_ported,
    laws_spatial,
)
from helpers.training.branch_models import BRANCH_MODELS
from helpers.training.graph_models import GRAPH_MODELS
from helpers.training.pipelined import (
    CNN,
    IN_V,
    MLP,
    MODELS,
    RECOMPUTED,
    SCHEDULES,
    Options,
    case_for,
    trains_as_one_rank,
)
from helpers.training.unusual_models import UNUSUAL_MODELS, every_convolution

from nnmpi.comm import Comm
from nnmpi.options.config import ALLREDUCES, ORDERS
from nnmpi.parallel.mesh import AXES

OPTIMIZERS: dict[str, Options] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "rmsprop": {"optimizer": "rmsprop", "weight_decay": 0.01},
    "adadelta": {"optimizer": "adadelta", "weight_decay": 0.01, "lr": 0.5},
    "adagrad": {"optimizer": "adagrad", "weight_decay": 0.01, "lr": 0.01},
    "adamax": {"optimizer": "adamax", "weight_decay": 0.01},
    "asgd": {"optimizer": "asgd", "weight_decay": 0.01, "lr": 0.05},
    "nadam": {"optimizer": "nadam", "weight_decay": 0.01},
    "radam": {"optimizer": "radam", "weight_decay": 0.01},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.01, "lr": 0.01},
    "lars": {"optimizer": "lars", "weight_decay": 0.01, "lr": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.01},
}

SPLITS: dict[str, Options] = {
    "mlp in micro-batches": {**MLP, "micro_batches": 3},
    "digits-cnn in micro-batches of one sample": {
        **CNN,
        "batch_size": 12,
        "micro_batches": 12,
        "steps": 10,
    },
    "mlp in batches of one sample": {**MLP, "batch_size": 1, "steps": 10},
    "digits-cnn in batches of two samples": {**CNN, "batch_size": 2, "steps": 10},
}
"""Ranks along dp have no samples in some of them."""

_OF_ONE_SAMPLE = SPLITS["digits-cnn in micro-batches of one sample"]
SUMS = ("shared", "ring")
RANKS_OVER_MPI = (2, 4, 8)
MANY = 60  # rows of a family, of which fewer are tried


class Row(NamedTuple):
    """A layout, what is trained in it, and how many ranks it takes.

    options   of the run that the row is, if its arrangement is held to it: the model may be under
              "build", and under "given" the function that has data, if they are not digits
    case      of any run of steps that the row is
    """

    name: str
    ranks: int
    trains_as_one_rank: Callable[..., None]
    options: Options | None = None
    case: Options | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether it is refused on a device, since ranks sum through memory that they share."""
        ways = ("allreduce=shared", "allreduce=hierarchical")
        return any(way in self.name.split() for way in ways)


def _row(name: str, layout: Options, case: Options) -> Row:
    return _trained(name, layout, case)._replace(options=case | layout)


def _trained(name: str, layout: Options, case: Options) -> Row:
    """A row whose arrangement is that of another one."""
    law = partial(trains_as_one_rank, layout, case)
    return _of_layout(name, layout, law)._replace(case=case | layout)


def _of_layout(name: str, layout: Options, law: Callable[[Comm], None]) -> Row:
    ranks = prod(layout.get(axis.name, 1) for axis in AXES)
    where = " ".join(f"{option}={value}" for option, value in layout.items() if option != "layout")
    where += " " + layout["layout"].replace(",", " ") if "layout" in layout else ""
    return Row(f"{where} {name}", ranks, law)


def _parted(options: Options) -> tuple[Options, Options]:
    """Options of a layout, and those of the one rank, too."""
    same = {name: value for name, value in options.items() if name == "micro_batches"}
    return {name: value for name, value in options.items() if name not in same}, same


def _data_parallel() -> Iterator[Row]:
    for dp, (name, case), allreduce in product((2, 3, 4), MODELS.items(), ("shared", "ring")):
        yield _row(name, {"dp": dp, "allreduce": allreduce}, case)
    for dp, allreduce in product((2, 3, 4, 8), ALLREDUCES):
        layout = {"dp": dp, "allreduce": allreduce, "bucket_mb": 0.001}
        yield _trained("digits-cnn", layout, {**CNN, "clip_norm": 0.3})
    for dp, allreduce in product((2, 3), ("shared", "ring")):
        layout = {"dp": dp, "allreduce": allreduce}
        for name, optimizer in OPTIMIZERS.items():
            yield _trained(f"digits-cnn {name}", layout, {**CNN, **optimizer, "clip_norm": 0.3})
        for name, case in SPLITS.items():
            yield _trained(name, layout, case)


def _pipelines() -> Iterator[Row]:
    for pp, (name, case) in product((2, 3, 4), MODELS.items()):
        yield _row(name, {"pp": pp}, {**case, "micro_batches": 3})
    layouts: dict[tuple[int, int], tuple[int, ...]] = {
        (1, 2): (1, 2, 4, 5),
        **dict.fromkeys([(1, 3), (1, 4), (2, 2)], (2, 5)),
        (1, 8): (5,),
        (2, 4): (4,),
    }
    for (dp, pp), counts in layouts.items():
        for (name, case), schedule, m in product(MODELS.items(), SCHEDULES, counts):
            layout = {"dp": dp, "pp": pp, "schedule": schedule}
            of_schedule = {**case_for(schedule, case, pp), "micro_batches": m}
            yield _trained(f"{name} in {m} micro-batches", layout, of_schedule)
    for schedule, (dp, zero) in product(IN_V, ((1, 0), (2, 0), (2, 3))):
        layout = {"dp": dp, "pp": 2, "schedule": schedule, "zero": zero}
        yield _row("mlp in 3 micro-batches", layout, {**MLP, "micro_batches": 3})
    for axes in ({"pp": 2}, {"pp": 3}, *({"dp": 2, "pp": 2, "allreduce": a} for a in SUMS)):
        for name, optimizer in OPTIMIZERS.items():
            case = {**CNN, **optimizer, "clip_norm": 0.3, "micro_batches": 3}
            yield _trained(f"digits-cnn {name}", axes, case)
    for dp, schedule in product((1, 2), ("gpipe", "interleaved", "zb-h1")):
        layout = {"dp": dp, "pp": 2, "schedule": schedule}
        yield _trained("digits-cnn in micro-batches of one sample", layout, _OF_ONE_SAMPLE)


def _tensor_parallel() -> Iterator[Row]:
    cases: dict[str, Options] = {
        "mlp sgd": UNEVEN,
        "digits-cnn adam": {**CNN, "optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.3},
        "digits-cnn adamw": {**CNN, "optimizer": "adamw", "weight_decay": 0.01},
    }
    for tp, (name, case) in product((2, 3, 4), cases.items()):
        yield _row(name, {"tp": tp}, case)
        yield _row(f"{name} in micro-batches", {"tp": tp}, {**case, "micro_batches": 3})
    for axes, (name, case) in product(({"dp": 2}, {"pp": 2}), cases.items()):
        yield _trained(f"{name} in micro-batches", {**axes, "tp": 2}, {**case, "micro_batches": 3})
    for schedule, pp in product(("gpipe", "1f1b", "interleaved", "zb-h1"), (2, 4)):
        case = {**case_for(schedule, UNEVEN, pp), "micro_batches": 4}
        yield _trained("mlp", {"pp": pp, "tp": 2, "schedule": schedule}, case)


def _ways_of_layers() -> Iterator[Row]:
    """Some layers by samples, others by channels; uneven samples, and none on a rank."""
    cnn = "0=samples,1=samples,4=samples,10=column"
    cases: list[tuple[Options, Options]] = [
        *((CNN, {"tp": tp, "layout": cnn}) for tp in (2, 3, 4)),
        *((CNN, {"tp": tp, "layout": "?=samples"}) for tp in (2, 3)),
        *((MLP, {"tp": tp, "layout": "1=column,3=row,5=samples"}) for tp in (2, 3)),
        (MLP, {"tp": 3, "layout": "*=samples"}),
        (MLP, {"tp": 2, "layout": "1=samples,5=samples,9=copy"}),
        *((case, {"tp": 2, "layout": "batch:tp,channels:tp"}) for case in (CNN, MLP)),
        (CNN, {"dp": 2, "tp": 2, "layout": "batch:dp,batch:tp"}),
        (MLP, {"tp": 3, "layout": "vocabulary:tp,1=column"}),
        *((CNN, {"dp": 2, "tp": 2, "layout": cnn, "zero": zero}) for zero in (0, 1, 3)),
        (_OF_ONE_SAMPLE, {"tp": 2, "layout": cnn}),
        (_OF_ONE_SAMPLE, {"dp": 2, "tp": 2, "layout": "?=samples", "allreduce": "ring"}),
    ]
    for options in ({"recompute": True}, {"schedule": "zb-h1"}):
        layout = {"pp": 2, "tp": 2, "layout": "0=samples,1=samples", "cut": "4", **options}
        cases.append(({**CNN, "micro_batches": 3}, layout))
    for case, layout in cases:
        name = case["model"].partition(":")[0]
        made = _trained if case is _OF_ONE_SAMPLE else _row
        yield made(name + " in micro-batches" * ("micro_batches" in case), layout, case)
    for axes, (name, build) in product(({"tp": 2}, {"dp": 2, "tp": 2}), GRAPH_MODELS.items()):
        yield _row(name, {**axes, "layout": "*=samples"}, {"build": build})
    ways = {"gpt": "*mlp*=samples", "mixture": "?=samples,1?=samples", "encoder": "*=samples"}
    for axes, (model, names) in product(({"tp": 2}, {"tp": 3}), ways.items()):
        yield _of_language(model, {**axes, "layout": names}, 1)
    for model, cuts in (
        *product(("gpt", "decoder"), ("heads:tp", "length:tp,channels:tp")),
        ("rotary", "batch:tp"),
    ):
        yield _of_language(model, {"tp": 2, "layout": cuts}, 1)
    for model in ("gpt", "decoder"):
        yield _of_language(model, {"cp": 2, "tp": 2, "layout": "length:cp,batch:tp"}, 1)


def _zero() -> Iterator[Row]:
    for zero, dp, (name, optimizer) in product((1, 2, 3), (2, 3, 4), OPTIMIZERS.items()):
        if name == "muon":
            continue  # refused
        layout = {"dp": dp, "zero": zero, "allreduce": "ring", "bucket_mb": 0.01}
        yield _row(f"digits-cnn {name}", layout, {**CNN, **optimizer})
    for zero, dp in product((1, 2, 3), (2, 3, 4)):
        layout = {"dp": dp, "zero": zero, "bucket_mb": 0.01}
        yield _row("mlp in micro-batches", layout, {**MLP, "micro_batches": 3})
    ways = (("ring", 1e-6), ("ring", None), ("p2p", 0.02), ("halving", 0.02))
    for zero, dp, (allreduce, mb) in product((1, 2, 3), (2, 3, 4), ways):
        layout = {"dp": dp, "zero": zero, "allreduce": allreduce, "bucket_mb": mb}
        yield _trained("digits-cnn", layout, CNN)
        yield _trained("mlp", layout, MLP)
    for dp, allreduce in product((3, 4), ("auto", "shared", "tree", "mpi", "hierarchical")):
        yield _trained("mlp", {"dp": dp, "zero": 1, "allreduce": allreduce}, MLP)
    for zero, dp, (name, case) in product((1, 2, 3), (2, 3), SPLITS.items()):
        layout = {"dp": dp, "zero": zero, "allreduce": "ring", "bucket_mb": 0.005}
        yield _trained(name, layout, case)
    for zero, schedule in product((1, 2, 3), SCHEDULES):
        layout = {"dp": 2, "pp": 2, "zero": zero, "bucket_mb": 0.005, "schedule": schedule}
        yield _trained("digits-cnn in micro-batches of one sample", layout, _OF_ONE_SAMPLE)
        for recompute in {False, schedule in RECOMPUTED}:
            case = {**CNN, "micro_batches": 3}
            yield _trained("digits-cnn", {**layout, "recompute": recompute}, case)


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
    case = {"build": every_convolution, "optimizer": "sgd", "momentum": 0.9, "lr": 0.02}
    for layout in (*layouts, {"dp": 2, "zero": 3, "bucket_mb": 0.001}):
        yield _trained("every convolution and pool", layout, {**case, "micro_batches": 2})


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
        others, same = _parted(layout)
        yield _row(name, others, {"build": build, **same})


def _branches() -> Iterator[Row]:
    """Branches and experts on ranks of their own; more ranks than branches among them."""
    layouts: list[Options] = [
        *({"tp": tp} for tp in (2, 3, 4)),
        *({"dp": dp} for dp in (2, 3)),
        *({"dp": dp, "tp": 2, "allreduce": how} for dp, how in ((2, "ring"), (3, "ring"))),
        {"dp": 3, "tp": 2, "bucket_mb": 1e-6},
        {"tp": 2, "micro_batches": 3, "recompute": True},
        {"dp": 2, "tp": 4, "micro_batches": 3},
        {"pp": 2, "micro_batches": 3},
        *({"pp": 2, "tp": 2, "micro_batches": 3, "schedule": how} for how in ("1f1b", "zb-h1")),
        *({"dp": 2, "tp": 2, "zero": zero, "bucket_mb": 0.001} for zero in (1, 2, 3)),
        {"dp": 2, "zero": 3, "bucket_mb": 0.001},
        {"dp": 2, "pp": 2, "tp": 2, "zero": 1, "micro_batches": 2},
    ]
    for layout, (name, build) in product(layouts, BRANCH_MODELS.items()):
        others, same = _parted(layout)
        case = {"build": build, "clip_norm": 0.5, "optimizer": "adamw", "weight_decay": 0.1}
        yield _row(name + " in micro-batches" * bool(same), others, case | same)


def _unusual() -> Iterator[Row]:
    """Shared weights, unused and frozen parameters, a gradient that is no number."""
    sums: list[Options] = [{"allreduce": allreduce, "bucket_mb": 1e-6} for allreduce in SUMS]
    sums += ({**sums[1], "zero": zero} for zero in (1, 2, 3))
    for (name, build), how, dp, m in product(UNUSUAL_MODELS.items(), sums, (2, 3), (1, 2)):
        case = {"build": build, "micro_batches": m, "weight_decay": 0.1}
        yield _trained(f"{name} in {m} micro-batches", {"dp": dp, **how}, case)
    for name, axes in product(("frozen", "spoilt"), ({"dp": 2, "pp": 2}, {"pp": 3})):
        case = {"build": UNUSUAL_MODELS[name], "micro_batches": 3, "weight_decay": 0.1}
        for schedule in SCHEDULES:
            yield _trained(name, {**axes, "schedule": schedule}, case)
        for zero in (1, 2, 3) if "dp" in axes else ():
            yield _trained(name, {**axes, **sums[1], "zero": zero}, case)
    for axes in ({"tp": 2}, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}):
        case = {"build": UNUSUAL_MODELS["spoilt"], "micro_batches": 3, "clip_norm": 0.5}
        yield _trained("spoilt", axes, case)


def _samples() -> Iterator[Row]:
    """Losses, targets and metrics of the user's own; indices, positions, several inputs."""
    three = {"micro_batches": 3}
    layouts: list[tuple[Options, Options]] = [
        *(
            ({"dp": dp, "allreduce": how}, {})
            for dp, how in ((2, "shared"), (2, "ring"), (3, "ring"))
        ),
        *(({"dp": 2, "zero": zero, "bucket_mb": 0.001}, {}) for zero in (1, 2, 3)),
        ({"dp": 3}, three),
        ({"dp": 3, "zero": 3}, three),
        ({"pp": 2, "cut": "2"}, three),
        ({"dp": 2, "pp": 2, "cut": "2", "schedule": "zb-h1"}, three),
        ({"tp": 2}, {}),
        ({"dp": 2, "tp": 2}, three),
        ({"pp": 2, "tp": 2, "cut": "3", "recompute": True}, three),
        ({"dp": 2, "verify": True}, {}),
        ({"sync": "bsp", "servers": 1}, {}),
    ]
    for (layout, same), (name, goal) in product(layouts, laws_goals.GOALS.items()):
        if goal.shards or "tp" not in layout:
            law = partial(laws_goals.trains_as_one_rank, goal=name, layout=layout, same=same)
            row = _of_layout(name + " in micro-batches" * bool(same), layout, law)
            yield row._replace(ranks=3) if "servers" in layout else row


def _ported() -> Iterator[Row]:
    """Layers, functions and hooks of models from elsewhere."""
    for layout, (name, build) in product(laws_ported.LAYOUTS, laws_ported.MODELS.items()):
        yield _trained(name, layout, {"build": build, **laws_ported.PLAIN})


def _transformers() -> Iterator[Row]:
    """Attention by heads, and the head tied with the embedding, over stages and over ranks."""
    layouts: list[Options] = [
        *({"tp": tp} for tp in (2, 3, 4)),
        *({"dp": dp, "zero": zero} for dp, zero in ((2, 0), (3, 0), (2, 1), (3, 2), (2, 3))),
        *({"pp": pp, "recompute": recompute} for pp, recompute in ((2, False), (3, True))),
        *({"dp": 2, axis: 2} for axis in ("pp", "tp")),
        {"pp": 2, "tp": 2, "schedule": "zb-h1"},
        *({"dp": 2, "pp": 2, "tp": 2, "zero": zero} for zero in (0, 1, 2, 3)),
        *({"dp": 2, "pp": 2, "zero": zero, "schedule": "gpipe"} for zero in (1, 2, 3)),
    ]
    sequence: Options = {"sequence_parallel": True}
    layouts += [
        *({"tp": tp, **sequence} for tp in (2, 3, 4)),
        *({"dp": 2, "tp": 2, **sequence, **how} for how in ({}, {"allreduce": "ring"})),
        *({"dp": 2, "tp": 2, **sequence, "zero": zero} for zero in (1, 2, 3)),
        {"dp": 2, "tp": 3, **sequence, "zero": 1},
        *({"pp": 2, "tp": 2, **sequence, "recompute": recompute} for recompute in (False, True)),
        {"pp": 2, "tp": 2, **sequence, "schedule": "zb-h1"},
        *({"dp": 2, "pp": 2, "tp": 2, **sequence, "zero": zero} for zero in (0, 3)),
    ]
    for layout in layouts:
        m = 3 if "pp" in layout else 1
        for model in ("gpt", "llama", "encoder", "mixture", "rotary"):
            if model == "encoder" and "sequence_parallel" in layout:
                continue  # no layer of it treats positions alone between two that are divided
            row = _of_language(model, layout, m)
            yield row if model in ("gpt", "llama", "mixture") else row._replace(options=None)


def _of_language(model: str, layout: Options, micro_batches: int) -> Row:
    law = partial(laws_language.trains_as_one_rank, layout, micro_batches, model)
    build = partial(laws_language.MODELS[model], laws_language.POSITIONS)
    made = {"given": laws_language.many_tokens, "micro_batches": micro_batches, "build": build}
    return _of_layout(model, layout, law)._replace(options=made | layout)


def _recomputed() -> Iterator[Row]:
    """Blocks, or attention alone, that run forward again; cut 6 divides a block, 9 does not."""
    layouts: list[Options] = [
        {"dp": 2},
        *({"dp": 3, "zero": zero, "bucket_mb": 0.001} for zero in (1, 2, 3)),
        {"tp": 2},
        *({"tp": tp, "sequence_parallel": True} for tp in (2, 3)),
        *({"pp": 2, "schedule": schedule} for schedule in SCHEDULES),
        *({"pp": 2, "cut": cut, "schedule": how} for cut, how in (("6", "1f1b"), ("9", "zb-h1"))),
        {"pp": 2, "tp": 2, "cut": "6", "sequence_parallel": True},
        {"dp": 2, "pp": 2, "zero": 3, "schedule": "zb-h1"},
        *({"dp": 2, "pp": 2, "tp": 2, "zero": zero} for zero in (0, 3)),
    ]
    for how, layout in product(("block", "selective"), layouts):
        m = 3 if "pp" in layout else 1
        for model in ("gpt", "llama", "decoder"):
            yield _of_language(model, {**layout, "recompute": how}, m)
    by_block: Options = {"recompute": "block"}
    for layout in (*layouts[:5], *layouts[7:12], {"dp": 2, "pp": 2, "zero": 2}):
        for name in ("residual mlp", "residual cnn"):
            case = {"build": GRAPH_MODELS[name], "micro_batches": 3}
            yield _row(name, {**layout, **by_block}, case)
    for layout in ({"dp": 2}, {"tp": 2, "sequence_parallel": True}, {"dp": 2, "tp": 2, "zero": 2}):
        yield _of_language("routed", {**layout, **by_block}, 1)


def _tokens_to_experts() -> Iterator[Row]:
    """Tokens that are cut along positions go to experts of other ranks, and results back."""
    layouts: list[Options] = [
        *({"tp": tp} for tp in (2, 3, 4)),
        *({"dp": 2, "tp": tp, "zero": zero} for tp, zero in ((2, 0), (3, 1), (2, 3))),
        *({"pp": 2, "tp": 2, "recompute": recompute} for recompute in (False, True)),
        *({"pp": 2, "tp": tp, "schedule": "zb-h1"} for tp in (2, 3)),
        *({"dp": 2, "pp": 2, "tp": 2, "zero": zero} for zero in (0, 2)),
    ]
    for model, layout in product(("routed", "everywhere"), layouts):
        micro_batches = 3 if "pp" in layout else 1
        yield _of_language(model, {**layout, "sequence_parallel": True}, micro_batches)


def _sequences() -> Iterator[Row]:
    """Sequences cut over ranks, beside every other axis; with dropout, and parts of any length."""
    layouts: list[Options] = [
        *({"cp": cp} for cp in (2, 3, 4)),
        *({"cp": 2, "zero": zero, "bucket_mb": 0.001} for zero in (1, 2, 3)),
        {"cp": 3, "allreduce": "ring"},
        *({"cp": 2, axis: 2} for axis in ("dp", "pp", "tp")),
        {"dp": 2, "cp": 2, "zero": 3},
        {"cp": 2, "pp": 2, "recompute": True},
        {"cp": 2, "pp": 2, "schedule": "zb-h1"},
        {"cp": 2, "tp": 3, "order": "dp,tp,pp"},
        {"dp": 2, "cp": 2, "tp": 2},
        *({"dp": 2, "cp": 2, "pp": 2, "zero": zero} for zero in (0, 1, 2, 3)),
        {"cp": 2, "pp": 2, "tp": 2, "recompute": True},
        *({"cp": 2, "recompute": how} for how in ("block", "selective")),
        {"cp": 2, "pp": 2, "recompute": "block"},
        {"cp": 2, "zero": 3, "bucket_mb": 0.001, "recompute": "selective"},
    ]
    positions = laws_language.UNEVEN
    made: Options = {"given": partial(laws_language.tokens, positions), "batch_size": 9}
    for layout in layouts:
        micro_batches = 3 if "pp" in layout else 1
        for model in ("gpt", "llama", "rotary"):
            law = partial(laws_language.trains_as_one_rank, layout, micro_batches, model)
            row = _of_layout(model, layout, law)
            build = partial(laws_language.MODELS[model], positions)
            said = {"build": build, "micro_batches": micro_batches}
            yield row._replace(options=made | layout | said if model != "rotary" else None)


def _sixteen_bits() -> Iterator[Row]:
    """Parameters and activations of 16 bits, float32 masters; the bound is that of the type.

    Micro-batches of ZeRO 2 and 3 add up in float32, so a sum may fit that one rank skips: none of
    these rows is so near.
    """
    layouts: list[Options] = [
        *({"dp": dp, "allreduce": how} for dp, how in ((2, "shared"), (3, "shared"), (3, "ring"))),
        *({"dp": 2, "zero": zero, "allreduce": "ring", "bucket_mb": 0.005} for zero in (1, 2, 3)),
        *({"dp": 3, "zero": zero, "bucket_mb": 0.005} for zero in (1, 2, 3)),
        *({axis: n} for axis in ("pp", "tp") for n in (2, 3)),
        {"dp": 2, "tp": 2, "zero": 1},
        {"dp": 2, "pp": 2, "schedule": "zb-h1"},
        *({"dp": 2, "pp": 2, "tp": 2, "zero": zero} for zero in (0, 1)),
    ]
    for dtype, layout, (name, case) in product(laws_halves.BOUNDS, layouts, MODELS.items()):
        cut = {"micro_batches": 2 if "pp" in layout else 1, "dtype": dtype}
        row = _in_16_bits(name, layout, {**case, **cut})
        # convolutions of channels that tp does not divide keep 11% more than is said of them
        is_said = layout != {"tp": 3} or name == "mlp"
        yield row._replace(options=case | cut | layout if is_said else None)
    three = {"dp": 2, "pp": 2, "tp": 2, "zero": 3}
    yield _in_16_bits("mlp", three, {**MLP, "micro_batches": 2, "dtype": "float16"})
    few: list[Options] = [layouts[0], *layouts[2:6]]
    models = UNUSUAL_MODELS | GRAPH_MODELS
    for dtype, (name, build) in product(laws_halves.BOUNDS, models.items()):
        for layout in few + [{"pp": 2}] * (name in GRAPH_MODELS):
            yield _in_16_bits(name, layout, {"build": build, "dtype": dtype, "micro_batches": 2})


def _narrow_sums() -> Iterator[Row]:
    """Sums over ranks that travel in 16 bits, by each algorithm, of stores and of activations."""
    hosts = ("ring", "tree", "ps", "p2p", "doubling", "halving", "hierarchical", "shared")
    layouts: list[Options] = [
        *({"dp": 3, "allreduce": how, "bucket_mb": 0.005} for how in hosts),
        *({"dp": 3, "zero": zero, "bucket_mb": 0.005} for zero in (1, 2, 3)),
        *({"dp": 4, "zero": 2, "allreduce": how} for how in ("p2p", "halving")),
        *({"tp": tp} for tp in (2, 3, 4)),
        *({"dp": 3, "tp": 2, "zero": zero} for zero in (0, 1)),
        {"dp": 2, "pp": 2, "tp": 2},
    ]
    of_language: list[Options] = [
        *({"tp": tp, "sequence_parallel": True} for tp in (2, 3)),
        *({"dp": 2, "tp": 3, "sequence_parallel": True, "zero": zero} for zero in (0, 2)),
        {"cp": 3, "allreduce": "ring"},
        {"cp": 2, "reduce_dtype": "float32"},
        {"dp": 3, "pp": 2},
    ]
    for dtype in laws_halves.BOUNDS:
        narrow = {"reduce_dtype": dtype}
        for layout, (name, case) in product(layouts, MODELS.items()):
            cut = {"micro_batches": 2 if "pp" in layout else 1, "dtype": dtype}
            row = _in_16_bits(name, layout | narrow, {**case, **cut})
            is_said = layout.get("tp", 2) == 2 or name == "mlp"  # as above
            yield row._replace(options=case | cut | layout | narrow if is_said else None)
        for layout, model in product((narrow | one for one in of_language), ("gpt", "decoder")):
            law = partial(laws_halves.language_trains_as_one_rank, layout, dtype, model)
            row = _of_language(model, {**layout, "dtype": dtype}, 1)
            yield row._replace(trains_as_one_rank=law)


def _families_in_16_bits() -> Iterator[Row]:
    """Of each family some rows in bfloat16, and one in float16: the first one, and none with a loss
    of experts, which has no loss scale."""
    for family in FAMILIES:
        if family.endswith("16 bits"):
            continue
        found = [row for row in map(_with_case, rows(family)) if row.case]
        plain = [row for row in found if not row.name.endswith(("mixture", "everywhere", "routed"))]
        for dtype, some in (
            ("bfloat16", found[len(found) // 6 :: max(len(found) // 3, 1)]),
            ("float16", plain[:1]),
        ):
            for row in some:
                case: Options = {**(row.case or {}), "dtype": dtype}
                law = partial(laws_halves.case_trains_as_one_rank, case)
                # as in "16 bits"
                is_said = case.get("tp", 2) == 2 or case.get("model") != "digits-cnn"
                options = {**row.options, "dtype": dtype} if row.options and is_said else None
                yield Row(f"{row.name} in {dtype}", row.ranks, law, options, case)
    for layout in ({"dp": 3, "allreduce": "ring"}, {"dp": 2, "zero": 3}, {"dp": 2, "tp": 2}):
        for goal in ("pixels", "squares"):
            law = partial(laws_goals.trains_as_one_rank_in_16_bits, goal=goal, layout=layout)
            yield _of_layout(f"{goal} in bfloat16", layout, law)


def _with_case(row: Row) -> Row:
    """A row with what it runs as `case`, if that is all that it is."""
    return row._replace(case=row.case or row.options)


def _in_16_bits(name: str, layout: Options, case: Options) -> Row:
    law = partial(laws_halves.trains_as_one_rank, layout, case)
    return _of_layout(f"{name} in {case['dtype']}", layout, law)


def _rows_of_images() -> Iterator[Row]:
    """Images by rows, of odd heights too; behind them whole images, channels or samples."""
    rows: Options = {"tp": 2, "layout": "rows:tp"}
    layouts: list[Options] = [
        *({**rows, "tp": tp} for tp in (2, 3, 4)),
        {**rows, "dp": 2},
        {**rows, "dp": 2, "zero": 3, "bucket_mb": 0.001},
        {**rows, "pp": 2, "micro_batches": 3},
        {**rows, "pp": 2, "micro_batches": 3, "schedule": "zb-h1"},
        {**rows, "pp": 2, "micro_batches": 3, "recompute": True},
        {**rows, "dp": 2, "pp": 2, "zero": 1, "micro_batches": 2},
        {**rows, "layout": "rows:tp,channels:tp"},
    ]
    for layout, (name, case) in product(layouts, laws_spatial.CNNS.items()):
        others, same = _parted(layout)
        law = partial(trains_as_one_rank, others, case | same)
        yield _of_layout(name, layout, law)._replace(options=case | layout)
    for layout in layouts:
        others, same = _parted(layout)
        yield _row("digits-cnn", others, {**CNN, **same})
        yield _row("residual cnn", others, {"build": GRAPH_MODELS["residual cnn"], **same})
    ways = ["0=spatial,1=spatial,10=column", "0=spatial,4=samples", "0=samples,4=spatial"]
    for given in (*ways, "rows:tp,batch:tp"):
        yield _row("digits-cnn", {"tp": 2, "layout": given}, CNN)
    yield _trained(
        "digits-cnn of one sample", {**rows, "dp": 2}, {**CNN, "batch_size": 1, "steps": 10}
    )


FAMILIES: dict[str, Callable[[], Iterator[Row]]] = {
    "data parallel": _data_parallel,
    "pipelines": _pipelines,
    "tensor parallel": _tensor_parallel,
    "ways of layers": _ways_of_layers,
    "zero": _zero,
    "three axes": _three_axes,
    "convolutions": _convolutions,
    "graphs": _graphs,
    "branches and experts": _branches,
    "unusual models": _unusual,
    "samples of any kind": _samples,
    "models from elsewhere": _ported,
    "transformers": _transformers,
    "tokens to experts": _tokens_to_experts,
    "recomputation": _recomputed,
    "sequences": _sequences,
    "16 bits": _sixteen_bits,
    "sums in 16 bits": _narrow_sums,
    "rows of images": _rows_of_images,
    "each family in 16 bits": _families_in_16_bits,
}

ON_EIGHT = ("pipelines", "three axes")
"""Families whose rows for 8 ranks run over MPI without --all."""


@cache
def rows(family: str) -> tuple[Row, ...]:
    """The rows of a family; their names differ."""
    found = (*FAMILIES[family](),)
    assert len({row.name for row in found}) == len(found)
    return found


def third(k: int) -> int:
    """0, 1 or 2, for the k-th row of a family; rows k, k + 3 and k + 6 are of three thirds."""
    return (k + k // 3 + k // 9) % 3


def rows_on_threads() -> Iterator[tuple[Row, bool]]:
    """All rows, and whether a row runs without --all: one in 36, and so many
    that each family has each of its models and options, and each value of an option is somewhere.
    """
    found, words, some = list[Row](), list[set[str]](), list[int]()
    for family in FAMILIES:
        own = rows(family)
        some += [len(found) + k for k in range(len(own)) if third(k) == 0][::12]
        found += own
        words += [words_of(family, row) for row in own]
    return with_all_words(found, words, some)


def words_of(family: str, row: Row) -> set[str]:
    """What is to be in a sample: the models and options of a family, and values of options."""
    words = row.name.split()
    values = {word for word in words if "=" in word}
    return values | {f"{family}: {word.partition('=')[0]}" for word in words}


def arranged_rows() -> Iterator[tuple[Row, bool]]:
    """The rows whose arrangement is held to the run, and whether it is without --all: one in
    36 of each family."""
    found, some = list[Row](), list[int]()
    for family in FAMILIES:
        said = [row for row in rows(family) if row.options is not None]
        some += [len(found) + k for k in range(len(said)) if third(k) == 1][::12]
        found += said
    return with_all_words(found, [{*row.name.split()} for row in found], some)


def resumed_rows(family: str, turn: int) -> Iterator[tuple[Row, bool]]:
    """The rows that are resumed from a checkpoint (turn 0), or lose a rank (turn 1), with what they
    run as `case`, and whether a row is without --all: one in 180 of every second family."""
    is_turn = [*FAMILIES].index(family) % 2 == turn
    found = [_with_case(row) for row in rows(family)]
    for k, row in enumerate(row for row in found if row.case is not None):
        yield row, is_turn and k % 180 == 17 % len(family)


def with_all_words(
    found: list[Row], words: list[set[str]], some: list[int]
) -> Iterator[tuple[Row, bool]]:
    """Rows, and whether a row is one of some, or has words that none of these has: so each model
    and each value of an option is tried. Rows with the most such words, on the fewest ranks, first.
    """
    chosen = {*some}
    seen = {word for k in some for word in words[k]}

    def gain(k: int) -> tuple[int, int]:
        return len(words[k] - seen), -found[k].ranks

    while found and gain(best := max(range(len(found)), key=gain))[0]:
        chosen.add(best)
        seen |= words[best]
    yield from ((row, k in chosen) for k, row in enumerate(found))


def of_device(family: str) -> list[Row]:
    """The rows that a device trains as the CPU does.

    In float16 it rounds products of matrices that the CPU keeps in float32 until they are summed:
    where gradients are near the largest float16, one of the two skips a step. CuPy's add.at, which
    an embedding needs, has no bfloat16.
    """
    forms = "{} in bfloat16", "dtype=bfloat16 {}"
    of_tokens = (form.format(name) for form in forms for name in laws_language.MODELS)
    others = ("residual in float16", "sgd in float16", *of_tokens)
    return [row for row in rows(family) if not row.name.endswith(others)]


def rows_on_device(family: str) -> Iterator[tuple[Row, bool]]:
    """All rows, and whether a row is one of those that run without --all: some of a third, for 4
    ranks at most, of small images, since an emulated device takes 12 seconds for one of mnist-cnn.
    """
    found = of_device(family)
    third_of = [k for k in range(len(found)) if third(k) == 2 or len(found) < 10]
    small = [k for k in third_of if found[k].ranks <= 4 and "mnist-cnn" not in found[k].name]
    some = {*(small[1::16] if len(found) < MANY else small[3::32])}
    yield from ((row, k in some) for k, row in enumerate(found))


def rows_over_mpi(family: str, ranks: int) -> Iterator[tuple[Row, bool]]:
    """Of rows for so many ranks, of 8 ranks for 6 too, a third of another third, of many rows a
    fifth of it; and whether a row runs without --all: the first one, by turns of the families
    for 2 ranks or for 4."""
    turns = [n for n in (2, 4) if _of_size(family, n)]
    is_turn = ranks not in turns or ranks == turns[[*FAMILIES].index(family) % len(turns)]
    yield from ((row, is_turn and k == 0) for k, row in enumerate(_of_size(family, ranks)))


def _of_size(family: str, ranks: int) -> list[Row]:
    found = rows(family)
    others = [row for k, row in enumerate(found) if third(k) == 1 or len(found) < 10]
    sizes = (ranks, ranks - 2 if ranks == 8 else 0)
    return [row for row in others if row.ranks in sizes][:: 3 if len(found) < MANY else 5]


def family_trains_as_one_rank(comm: Comm, name: str, is_of_sample: bool = True) -> None:
    for row in (row for row, one in rows_over_mpi(name, comm.size) if one == is_of_sample):
        part = comm.split(0 if comm.rank < row.ranks else None)
        if part is not None:
            row.trains_as_one_rank(part)
            part.free()


def more_of_a_family_trains_as_one_rank(comm: Comm, name: str) -> None:
    family_trains_as_one_rank(comm, name, is_of_sample=False)
