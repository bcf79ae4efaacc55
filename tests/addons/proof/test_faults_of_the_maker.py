"""Faults of the code that makes lists, and of the code that carries them out: list and facts agree
with each other, and both are wrong. The proof derives by itself what is due, and refuses them."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from proved import CNN, GPT, on_paper, proved

from nnmpi.addons.proof import actions
from nnmpi.addons.transformer.context.ring import Ring
from nnmpi.data.loader import BatchSplit, Loader, part_of
from nnmpi.parallel.arrangement import arrangement
from nnmpi.parallel.arrangement.arrangement import Arrangement, counting_flags
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, RankModel
from nnmpi.parallel.facts import exchanges
from nnmpi.parallel.step.ports import LossSink
from nnmpi.parallel.step_list import chain, step, values
from nnmpi.parallel.step_list.step import passes_of
from nnmpi.parallel.tensor import layers, ops, specs
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind, Op

Options = dict[str, Any]
Faulty = Callable[[pytest.MonkeyPatch], Any]
"""Makes the fault; returns a function of the arrangement if it is changed."""

SP: Options = {**GPT, "ranks": 2, "tp": 2, "sequence_parallel": True}
SP_DP = SP | {"ranks": 4, "dp": 2}
TP: Options = {**GPT, "ranks": 2, "tp": 2}
PP: Options = {**GPT, "ranks": 4, "pp": 2, "dp": 2, "micro_batches": 2}
DP: Options = {**GPT, "ranks": 2, "dp": 2, "micro_batches": 2}
SMALL = DP | {"bucket_mb": 0.01}
CP: Options = {**GPT, "ranks": 4, "dp": 2, "cp": 2, "micro_batches": 2}
BATCH_NORM: Options = {**CNN, "ranks": 2, "dp": 2, "micro_batches": 2}


def terms_of(change: Callable[[frozenset[int]], Any]) -> Faulty:
    """Other parameters are said to have partial gradients."""

    def changed(a: Arrangement) -> Arrangement:
        found = frozenset(change(a.sharding.partial_gradients))
        return dataclasses.replace(a, sharding=a.sharding._replace(partial_gradients=found))

    return lambda patch: changed


def placed(v: int, axis: int | None) -> Faulty:
    """A parameter is said to be cut along another axis; None: whole."""

    def changed(a: Arrangement) -> Arrangement:
        cuts = dict(a.sharding.variables)
        if axis is None:
            del cuts[v]
        else:
            cuts[v] = cuts[v]._replace(axis=axis)
        return dataclasses.replace(a, sharding=a.sharding._replace(variables=cuts))

    return lambda patch: changed


def models(change: Callable[[RankModel], RankModel]) -> Faulty:
    def changed(a: Arrangement) -> Arrangement:
        return dataclasses.replace(
            a, rank_models={at: change(m) for at, m in a.rank_models.items()}
        )

    return lambda patch: changed


def untied(model: RankModel) -> RankModel:
    return model._replace(buckets=tuple(b._replace(tied=NOT_TIED) for b in model.buckets))


def chains(change: Callable[[Chain], Chain]) -> Faulty:
    def faulty(patch: pytest.MonkeyPatch) -> None:
        right = chain.chain_of
        for module in (chain, step):
            patch.setattr(module, "chain_of", lambda a, rank: change(right(a, rank)))

    return faulty


def without_last(of: Chain) -> Chain:
    return dataclasses.replace(of, units=(*of.units[:-1], of.units[-1]._replace(buckets=())))


def sets(of: Any, name: str, value: Any) -> Faulty:
    return lambda patch: patch.setattr(of, name, value)


def end(kind: Kind, make: Any) -> Faulty:
    """The exchanges of operations of a kind, at the end of a step, are others."""
    return lambda patch: patch.setitem(exchanges._OF_KIND, kind, make)  # type: ignore[arg-type]


def along_dp(a: Arrangement, rank: int, op: Op) -> Any:
    for _, exchange in exchanges._terms(a, rank, op):
        yield "dp", exchange._replace(group=a.mesh.group(rank, "dp"))


def divides(divisor: Callable[[LossSink, int], float]) -> Faulty:
    def seeds(self: LossSink, micro: int, outputs: Any, scale: float = 1.0) -> Any:
        return [np.float64(1 / divisor(self, micro))]

    return sets(LossSink, "seeds", seeds)


def counted(self: LossSink, micro: int) -> int:
    return max(1, int((self._load.micro[micro].y != -100).sum()))


def own_divisor(patch: pytest.MonkeyPatch) -> None:
    right = Loader._loads

    def loads(self: Loader, *given: Any) -> Any:
        for load in right(self, *given):
            yield load._replace(divisor=sum(self.divisor(batch.y) for batch in load.micro))

    patch.setattr(Loader, "_loads", loads)


def same_samples(self: BatchSplit, rows: Any) -> Any:
    m = self.micro_batches
    return [part_of(part_of(rows, m, i), self.ranks, 0) for i in range(m)]


def flags(change: Callable[[Arrangement, int, list[bool]], list[bool]]) -> Faulty:
    return sets(actions, "counting_flags", lambda a, r: change(a, r, counting_flags(a, r)))


def no_sum(self: Any, terms: Any, order: Any = None) -> Any:
    return terms


def part_kept(self: Any, terms: Any, order: Any = None) -> Any:
    return ops.own_part(terms, self.comm, self.bounds, self.axis).copy()


def column_alone(x: Any, w: Any, b: Any, *, of: Any, spec: Any, axis: int, **options: Any) -> Any:
    return of(x, w, b, **options)


def row_alone(x: Any, w: Any, b: Any, *, of: Any, spec: Any, axis: int, **options: Any) -> Any:
    kind = type("Alone", (type(spec),), {"sum": no_sum})
    return layers_row(x, w, b, of=of, spec=kind(*spec), axis=axis, **options)


layers_row = layers.row


def with_fewer(a: Arrangement, micro: int) -> Any:
    return passes_of(a, max(micro - 1, 1))


def own_keys(self: Ring, kv: Any) -> Any:
    return (((self.comm.rank - i) % self.comm.size, kv) for i in range(self.comm.size))


class Fault(NamedTuple):
    options: Options
    makes: Faulty
    said: str


PARTIAL = "is still a partial sum along"
FAULTS = {
    "no gradient is said to be partial (Megatron-LM 1446)": Fault(
        SP, terms_of(lambda _: ()), rf"AGREE: the gradient of h.0.ln_1.weight {PARTIAL} tp"
    ),
    "one norm's gradient is not said to be partial": Fault(
        SP, terms_of(lambda of: of - {2}), rf"h.0.ln_1.weight {PARTIAL} tp"
    ),
    "a cut weight's gradient is said to be partial": Fault(
        SP, terms_of(lambda of: of | {5}), r"c_attn.bias along tp, where every rank has all of it"
    ),
    "a copy's gradient is said to be partial": Fault(
        TP, terms_of(lambda _: (2,)), "h.0.ln_1.weight along tp, where .* it would count 2 times"
    ),
    "terms are summed along dp": Fault(SP_DP, end(Kind.TERMS, along_dp), "sums twice along one"),
    "terms are not summed": Fault(SP, end(Kind.TERMS, lambda *_: ()), f"{PARTIAL} tp"),
    "tied buckets are not tied": Fault(PP, models(untied), rf"wte.weight {PARTIAL} pp"),
    "tied buckets are not tied, with ZeRO 2": Fault(
        PP | {"zero": 2}, models(untied), rf"wte.weight {PARTIAL} pp"
    ),
    "a chain knows no tied buckets": Fault(
        PP | {"zero": 2},
        chains(lambda of: dataclasses.replace(of, tied={})),
        rf"wte.weight {PARTIAL} pp",
    ),
    "tied buckets are summed within a stage": Fault(
        PP,
        sets(Arrangement, "across_stages", lambda self, rank, *_: self.replicas(rank)),
        rf"wte.weight {PARTIAL} pp",
    ),
    "sums leave out cp": Fault(
        CP, sets(arrangement, "summed_axes", lambda _: ("dp",)), f"{PARTIAL} cp"
    ),
    "sums leave out dp": Fault(
        CP, sets(arrangement, "summed_axes", lambda _: ("cp",)), f"{PARTIAL} dp"
    ),
    "sums go along tp too": Fault(
        TP, sets(arrangement, "summed_axes", lambda _: ("dp", "tp")), "it would count 2 times"
    ),
    "the last unit has no buckets": Fault(SMALL, chains(without_last), "terms of the gradient"),
    "nothing is gathered, with ZeRO 1": Fault(
        DP | {"zero": 1}, sets(values, "value_slots", lambda *_: {}), "values .* not gathered"
    ),
    "nothing is gathered, with ZeRO 3": Fault(
        DP | {"zero": 3}, sets(values, "value_slots", lambda *_: {}), "values .* not gathered"
    ),
    "a schedule leaves out a micro-batch": Fault(
        DP, sets(step, "passes_of", with_fewer), "1 of 2 terms of the gradient"
    ),
    "the norm counts all copies (ROCm TransformerEngine 715)": Fault(
        TP, flags(lambda a, r, of: [True] * len(of)), "the norm: .* is counted 1 times by rank 0"
    ),
    "the norm counts no tied weight": Fault(
        PP,
        flags(
            lambda a, r, of: [
                flag and v.variable != 0 for flag, v in zip(of, a.model_on(r).trained, strict=True)
            ]
        ),
        "the norm: wte.weight is counted by no rank",
    ),
    "all ranks along tp count the loss": Fault(
        TP, sets(actions, "counts_loss", lambda at: True), "the loss: ranks 0, 1 along tp count it"
    ),
    "the mean is of a micro-batch (transformers 34191)": Fault(
        DP, divides(lambda sink, m: 4 * counted(sink, m)), "has the weight"
    ),
    "ignored labels are counted": Fault(DP, divides(lambda sink, m: 8 * 12), "has the weight"),
    "the loss is divided by micro-batches too (torchtitan 1733)": Fault(
        PP, divides(lambda sink, m: 2 * sink._load.divisor), "has the weight"
    ),
    "the divisor is of own samples": Fault(DP, own_divisor, "has the weight"),
    "replicas have the same samples (astroPT 64)": Fault(
        DP, sets(BatchSplit, "__call__", same_samples), "has the weight"
    ),
    "a column does not sum the gradient of its input": Fault(
        TP,
        sets(layers, "column", column_alone),
        "passes B of stage 0, along tp: missing .* all_red",
    ),
    "a row does not sum its output": Fault(
        TP, sets(layers, "row", row_alone), "passes F of stage 0, along tp: missing .* all_reduce"
    ),
    "an embedding does not sum its rows": Fault(
        TP, sets(specs.Replicated, "sum", no_sum), "along tp: missing .* all_reduce"
    ),
    "a gradient is cut instead of scattered": Fault(
        SP, sets(specs.AxisSharded, "sum", part_kept), "along tp: missing .* reduce_scatter"
    ),
    "statistics are of own samples (flax 2417)": Fault(
        BATCH_NORM,
        lambda patch: (
            lambda a: dataclasses.replace(
                a, strategy=a.strategy._replace(shared_stats=lambda config: False)
            )
        ),
        "along dp: missing .* all_",
    ),
    "attention has its own keys only": Fault(
        CP, sets(Ring, "travelling", own_keys), "along cp: missing .* message"
    ),
    "a row's weight is cut along outputs": Fault(
        TP, placed(6, 0), "h.0.attn.c_proj computes some outputs on each rank"
    ),
    "scores are whole, and the loss exchanges nothing": Fault(
        TP,
        lambda patch: lambda a: dataclasses.replace(a, sharding=a.sharding._replace(output=None)),
        "along tp: missing .* all_gather",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    proved(a := on_paper(**fault.options))
    changed = fault.makes(monkeypatch)
    a = dataclasses.replace(a)  # without what is cached
    a.graph.cache.clear()
    with pytest.raises(ScheduleError, match=fault.said):
        proved(changed(a) if callable(changed) else a)


def test_each_gradient_that_is_partial_has_to_be_said_to_be() -> None:
    """Of every parameter the opposite is said."""
    a = on_paper(**SP)
    partial = a.sharding.partial_gradients
    trained = {v for v, variable in enumerate(a.graph.variables) if variable.is_trained}
    assert 0 < len(partial) < len(trained)
    for v in sorted(trained):
        sharding = a.sharding._replace(partial_gradients=partial ^ {v})
        path = a.graph.variables[v].path
        with pytest.raises(ScheduleError, match=f"the gradient of {path} "):
            proved(dataclasses.replace(a, sharding=sharding))


@pytest.mark.parametrize("options", [SMALL, SMALL | {"zero": 2}], ids=["ZeRO 0", "ZeRO 2"])
def test_each_bucket_has_to_be_in_its_units(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = chain.chain_of
    a = on_paper(**options)
    for u, unit in enumerate(of := right(a, 0).units):
        lacks = (*of[:u], unit._replace(buckets=unit.buckets[1:]), *of[u + 1 :])
        if unit.buckets:
            for module in (chain, step):
                monkeypatch.setattr(
                    module,
                    "chain_of",
                    lambda a, r, x=lacks: dataclasses.replace(right(a, r), units=x),
                )
            with pytest.raises(ScheduleError, match=r"(of|to) the gradient of"):
                proved(dataclasses.replace(a))
    assert len(of) > 3
