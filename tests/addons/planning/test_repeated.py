"""Stages and sections that are recorded once for several, beside recordings of each alone."""

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.runs import fit
from helpers.training.laws_language import MODELS, POSITIONS, VOCABULARY, many_tokens
from helpers.training.on_paper import arranged

from nnmpi import Config, Tensor, Trainer, nn, plan, train
from nnmpi.addons.planning.paper.recording import _has_halves, passes, recorded
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.schedules.op import Kind


class Block(nn.Module):
    """Two residual connections, so that a cut within it divides two tensors."""

    def __init__(self, width: int) -> None:
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 30),
            nn.Linear(30, width),
        )
        self.other, self.last, self.act = nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        return x + self.last(self.other(x))


class Blocks(nn.Module):
    """Six blocks. The first activation is added before each, or those of its first half in its
    second half, or blocks share a layer."""

    def __init__(self, kind: str) -> None:
        self.embedding, self.kind = nn.Embedding(VOCABULARY, 20), kind
        self.blocks = nn.ModuleList([Block(20) for _ in range(6)])
        self.head = nn.Linear(20, VOCABULARY, bias=False)
        if kind == "tied":
            self.head.weight = self.embedding.weight
            for block in self.blocks:
                block.last = self.blocks[0].last

    def forward(self, tokens: Tensor) -> Tensor:
        first = x = self.embedding(tokens)
        kept = list[Tensor]()
        for i, block in enumerate(self.blocks):
            x = x + first if self.kind == "skips" else x
            x = x + kept.pop() if self.kind == "halves" and i > 2 else x
            x = block(x)
            kept.append(x)
        return self.head(x).transpose(1, 2)


INTERLEAVED = {"schedule": "interleaved", "virtual_stages": 2}
SHAPE = {"pp": 4, "schedule": "interleaved", "virtual_stages": 4}
CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "blocks in many stages": (partial(MODELS["gpt"], POSITIONS), 4, {**SHAPE, "micro_batches": 4}),
    "tied": (partial(Blocks, "tied"), 1, {}),
    "tied, pp": (partial(Blocks, "tied"), 2, {"pp": 2, "cut": "32"}),
    "tied, tp": (partial(Blocks, "tied"), 2, {"tp": 2}),
    "cut within blocks": (partial(Blocks, ""), 4, {"pp": 2, "tp": 2, "cut": "33"}),
    "cut within blocks, zb-h1": (
        partial(Blocks, ""),
        2,
        {"pp": 2, "cut": "33", "schedule": "zb-h1"},
    ),
    "recomputed blocks": (partial(Blocks, ""), 2, {"pp": 2, "cut": "33", "recompute": "block"}),
    "skips over stages": (partial(Blocks, "skips"), 4, {"pp": 4}),
    "skips over virtual stages": (partial(Blocks, "skips"), 3, {"pp": 3, **INTERLEAVED}),
    "skips to the second half": (partial(Blocks, "halves"), 4, {"pp": 2, "dp": 2, **INTERLEAVED}),
}


@pytest.mark.parametrize(("build", "ranks", "options"), CASES.values(), ids=CASES)
def test_equal_parts_are_what_each_is_alone(
    build: Callable[[], nn.Module], ranks: int, options: dict[str, Any]
) -> None:
    """Calls, exchanges, and bytes that are kept; the peak of a pass is not
    below, and at most 6% above."""
    a = arranged(Cluster.on_paper(ranks), build, many_tokens, **{"micro_batches": 2, **options})
    for rank in range(ranks):
        for stage in a.model_on(rank).stages:
            samples = micro_batches(a, rank, 24)[0]
            said = passes(a, rank, stage, samples)
            alone = recorded(a, rank, stage, samples, halves=_has_halves(a))
            for kind in said.exchanges.keys() & alone.exchanges:
                assert said.exchanges[kind] == alone.exchanges[kind]
            nbytes, of_alone = said.nbytes, alone.nbytes
            assert nbytes._replace(more={}, through=0, calls=0) == of_alone._replace(
                more={}, through=0, calls=0
            )
            start = dict.fromkeys(Kind, alone.nbytes.kept) | {Kind.W: alone.nbytes.left}
            for kind, more in of_alone.more.items():
                assert 1 <= (start[kind] + nbytes.more[kind]) / (start[kind] + more) < 1.06


MODEL = "--model gpt:2x2x32 --context 16 --batch-size 8"
IN_PARTS = "--ranks 4 --pp 4 --schedule interleaved --virtual-stages 4 --micro-batches 4"


def test_blocks_in_several_stages_each_are_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(shlex.split(f"--dry-run {IN_PARTS} {MODEL} --data text")) == 0
    described = f"--machine a100-80g --ranks 8 --vocabulary 100 --dtype bfloat16 {MODEL}"
    assert plan.main(shlex.split(described)) == 0
    assert "68 layouts examined" in capsys.readouterr().out


def as_on_one_rank(comm: Comm) -> None:
    """With the report of a command, which says what ranks send and hold."""

    def loss(comm: Comm, **layout: Any) -> float:
        options = Config(batch_size=8, steps=2, dtype="float64", micro_batches=4, **layout)
        with Trainer(options, partial(MODELS["gpt"], POSITIONS), many_tokens(), comm) as trainer:
            return fit(trainer)["loss"]

    assert loss(comm, **SHAPE) == pytest.approx(loss(comm_self()), rel=1e-12)


def test_blocks_in_several_stages_each_train_as_on_one_rank() -> None:
    threads.run(4, as_on_one_rank)
