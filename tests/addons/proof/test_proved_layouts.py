"""Layouts that train as one rank does are proved, and changes of their lists are refused."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.sample import one_in
from helpers.tensor.laws_sequence import tokens_alone
from helpers.tensor.laws_tensor_graphs import MODELS
from helpers.training.conformance import arranged_rows
from helpers.training.laws_language import many_tokens
from helpers.training.laws_recurrent import Tagger, sequences
from proved import GPT, lists_of, on_paper, proved

import nnmpi
from nnmpi import nn
from nnmpi.addons.proof.layers import Share
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import ADDS, Kind, Op


def test_layouts_of_the_table_of_conformance_are_proved(is_sample: bool) -> None:
    """Each eighth, and those that are held to a run; with --all all of them."""
    table = [*arranged_rows()]
    eighth = {row.name for row in one_in(8, [row for row, _ in table], "proofs")}
    chosen = [row for row, is_of_sample in table if is_of_sample or row.name in eighth]
    for row in chosen:
        try:
            proved(on_paper(row.ranks, **row.options or {}))
        except ScheduleError as error:
            raise AssertionError(row.name) from error
    assert len(chosen) > (150 if is_sample else 800)


def test_a_second_half_of_a_backward_pass_may_gather_again() -> None:
    halved = {"tp": 2, "pp": 2, "sequence_parallel": True, "schedule": "zb-h1", "micro_batches": 2}
    proved(on_paper(4, **GPT, **halved))


def test_what_ranks_have_of_gradients() -> None:
    shares = proved(a := on_paper(4, dp=2, tp=2, sequence_parallel=True, **GPT))
    found = {
        variable.path: {axis: shares.gradients[v, axis].share for axis in ("dp", "tp")}
        for v, variable in enumerate(a.graph.variables)
    }
    assert {shared["dp"] for shared in found.values()} == {Share.TERM}
    of_block = {name.removeprefix("h.0."): of["tp"] for name, of in found.items() if "h.0." in name}
    assert of_block == {
        **dict.fromkeys(("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"), Share.TERM),
        **dict.fromkeys(
            ("attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"), Share.CUT
        ),
        **dict.fromkeys(("mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight"), Share.CUT),
        **dict.fromkeys(("attn.c_proj.bias", "mlp.c_proj.bias"), Share.TERM),
    }


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_ones_own_are_proved_by_what_they_declare(name: str) -> None:
    """Their parts are not nnmpi's to know."""
    for options in ({"tp": 2}, {"tp": 2, "dp": 2, "zero": 3}, {"tp": 2, "pp": 2}):
        ranks = prod(n for axis, n in options.items() if axis != "zero")
        proved(on_paper(ranks, build=MODELS[name], **options))


class TwoPairs(nn.Module):
    """Two pairs of layers with the same weights, and a weight that is a product of parameters."""

    def __init__(self) -> None:
        self.first, self.scale = nn.Linear(64, 24), nn.Parameter(np.ones((24, 1), np.float32))
        self.a, self.b, self.c, self.d = (nn.Linear(24, 24) for _ in range(4))
        self.c.weight, self.d.weight, self.d.bias = self.a.weight, self.b.weight, self.b.bias
        self.last = nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        y = self.first(x.reshape(len(x), 64))
        for layer in (self.a, self.b, self.c, self.d):
            y = nnmpi.tanh(layer(y))
        return self.last(y @ (self.last.weight.T * self.scale) @ self.last.weight)


def tied_layers() -> nn.Sequential:
    twice = nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), *twice, *twice, nn.Linear(24, 10))


MORE: dict[str, dict[str, Any]] = {
    "two tied buckets, along pp": {"build": TwoPairs, "dp": 2, "pp": 2, "zero": 1},
    "a product of parameters": {"build": TwoPairs, "dp": 2, "zero": 2},
    "groups of tied parameters": {
        "build": tied_layers,
        "cut": "6",
        "dp": 2,
        "pp": 2,
        "zero": 2,
    },
    "a bucket of two stages of a rank": {
        "build": MODELS["tied"],
        "dp": 2,
        "pp": 2,
        "zero": 2,
        "bucket_mb": 1e-6,
        "schedule": "zb-v",
    },
    "states of an LSTM": {"build": Tagger, "given": sequences, "dp": 2},
}


@pytest.mark.parametrize("name", MORE)
def test_an_unusual_graph_is_proved(name: str) -> None:
    options = MORE[name]
    proved(on_paper(options.get("dp", 1) * options.get("pp", 1), **options))


def test_a_layer_of_positions_is_proved() -> None:
    given = {"build": tokens_alone, "given": many_tokens, "tp": 2, "sequence_parallel": True}
    shares = proved(a := on_paper(2, **given))
    path = next(v for v, x in enumerate(a.graph.variables) if x.path == "2.weight")
    assert shares.terms(path) == {"tp": "2 computes some positions on each rank"}


# ---- changes of lists

Change = Callable[[list[Op]], list[Op]]


def without(*kinds: Kind) -> Change:
    return lambda ops: [op for op in ops if op.kind not in kinds]


def without_bucket(b: int) -> Change:
    return lambda ops: [op for op in ops if not (op.kind in (Kind.SUM, Kind.FINISH) and op.at == b)]


def first(ops: Sequence[Op], kind: Kind) -> int:
    return next(k for k, op in enumerate(ops) if op.kind is kind)


def moved(kind: Kind, before: Callable[[Sequence[Op]], int]) -> Change:
    def change(ops: list[Op]) -> list[Op]:
        ops.insert(before(ops), ops.pop(first(ops, kind)))
        return ops

    return change


def last_pass(ops: Sequence[Op]) -> int:
    return max(k for k, op in enumerate(ops) if op.kind in ADDS)


def of_last_micro_batch(ops: list[Op]) -> list[Op]:
    last = max(op.micro for op in ops if op.kind is Kind.SUM)
    return [op for op in ops if op.kind not in (Kind.SUM, Kind.FINISH) or op.micro == last]


def twice(kind: Kind) -> Change:
    return lambda ops: [op for op in ops for _ in range(1 + (op.kind is kind))]


ZERO = {**GPT, "ranks": 2, "dp": 2, "zero": 2, "micro_batches": 2}
STAGES = {**GPT, "ranks": 4, "pp": 2, "dp": 2, "micro_batches": 2}
PLAIN = {**GPT, "ranks": 2, "dp": 2, "micro_batches": 2}
OF_POSITIONS = {**GPT, "ranks": 2, "tp": 2, "sequence_parallel": True}

PUBLISHED: dict[str, tuple[dict[str, Any], Change, str]] = {
    "norms are not summed along tp (Megatron-LM 1446)": (
        OF_POSITIONS,
        without(Kind.TERMS),
        "AGREE: the gradient of h.0.ln_1.weight is still a partial sum along tp",
    ),
    "tied weights are not summed over stages (Megatron-LM 656)": (
        STAGES | {"zero": 2},
        without(Kind.TIES),
        "wte.weight is still a partial sum along pp",
    ),
    "so without ZeRO": (STAGES, without_bucket(1), "terms of the gradient of wte.weight"),
    "they are summed over stages too early (Megatron-LM 844)": (
        STAGES | {"zero": 2},
        moved(Kind.TIES, lambda ops: first(ops, Kind.FINISH)),
        "TIES: the sums that it adds up are not complete",
    ),
    "only the last micro-batch is summed (Fast-LLM 550)": (
        ZERO | {"micro_batches": 4},
        of_last_micro_batch,
        "1 of 4 terms of the gradient|4 terms|terms of the gradient",
    ),
    "the sum comes before the last backward pass (build-nanogpt 30)": (
        PLAIN,
        moved(Kind.SUM, last_pass),
        "terms of the gradient",
    ),
    "values are not waited for (Megatron-LM 950)": (
        ZERO | {"zero": 3},
        without(Kind.WAIT),
        "whose values since the last update are not gathered",
    ),
    "values are not gathered after the update (Megatron-LM 6920)": (
        ZERO,
        without(Kind.GATHER, Kind.WAIT),
        "whose values since the last update are not gathered",
    ),
    "the norm is taken before the sums end (DeepSpeed 1801)": (
        PLAIN,
        moved(Kind.AGREE, lambda ops: first(ops, Kind.FINISH)),
        "AGREE: sums are under way",
    ),
    "nothing is summed (verl 7493)": (
        PLAIN,
        without(Kind.SUM, Kind.FINISH),
        "AGREE: 0 of 2 terms of the gradient of",
    ),
    "a gradient is summed twice (Megatron-LM 6660)": (ZERO, twice(Kind.SUM), "summed twice|0 of 1"),
    "a weight's gradient is added twice (PyTorch 181365)": (
        STAGES | {"schedule": "zb-h1"},
        twice(Kind.W),
        "runs 2 times backward",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_bug_is_refused(name: str) -> None:
    options, change, said = PUBLISHED[name]
    lists = lists_of(a := on_paper(**options))
    changed = [change([*ops]) for ops in lists]
    assert [*map(tuple, changed)] != [*map(tuple, lists)]
    with pytest.raises(ScheduleError, match=said):
        proved(a, changed)
