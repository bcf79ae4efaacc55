"""The memory of a step, as it is traced, beside what is said of it."""

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
from helpers.planning import planning
from helpers.training import on_paper as small
from helpers.training.laws_language import MODELS, POSITIONS, VOCABULARY, many_tokens, windows
from helpers.training.transformer_models import Decoder

from nnmpi import Config, Tensor, Trainer, nn
from nnmpi import data as datasets
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.paper import on_numbers
from nnmpi.addons.planning.paper.activations import (
    activations,
    message_buffers,
    needed,
    pass_bytes,
    receive_buffers,
)
from nnmpi.addons.planning.paper.recording import recorded
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.arrays import meta
from nnmpi.comm import comm_self
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.options.collector import gc_paused
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.gradients import gradient_slots
from nnmpi.run.setup import models, objectives
from nnmpi.run.setup.cutting import uncut
from nnmpi.run.setup.setup import build_model
from nnmpi.schedules.op import Kind

DIGITS = partial(datasets.load, "synthetic:1x28x28:10:600")
IMAGES = partial(datasets.load, "synthetic:3x32x32:10:40")
IN_PARTS = Config(model="mnist-cnn", batch_size=128, micro_batches=4)
DECODER = partial(Decoder, VOCABULARY, 64, 2, 4, 64, 0)
TOKENS = partial(windows, 40, 64)


def gpt() -> nn.Module:
    return nn.GPT(2, 4, 64, VOCABULARY, 64)


CASES: dict[str, tuple[Config, Callable[[], nn.Module] | None, Callable[[], Dataset]]] = {
    "mnist-cnn": (Config(model="mnist-cnn", batch_size=32), None, DIGITS),
    "mnist-cnn in micro-batches": (IN_PARTS, None, DIGITS),
    "cifar-cnn": (Config(model="cifar-cnn", batch_size=8), None, IMAGES),
    "decoder": (Config(batch_size=8, compile=True), DECODER, TOKENS),
    "gpt in micro-batches": (Config(batch_size=8, micro_batches=2), gpt, TOKENS),
}


class Recurrent(nn.Module):
    """A language model of one LSTM."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.lstm = nn.LSTM(64, 96, batch_first=True)
        self.out = nn.Linear(96, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.out(hidden).transpose(1, 2)


def python_objects(a: Arrangement, calls: int) -> int:
    """An estimate of the bytes of Python objects of a run (layers, parameters, graph, tape, and
    recorded passes of so many calls), which matter beside the arrays of a small model."""
    return 150_000 + 10_000 * len(a.graph.nodes) + 2_400 * calls


@pytest.mark.parametrize(("config", "build", "given"), CASES.values(), ids=CASES)
def test_a_step_takes_the_memory_that_is_said(
    config: Config, build: Callable[[], nn.Module] | None, given: Callable[[], Dataset]
) -> None:
    """Within 2%, without the samples of the data set."""
    data = given()
    with closing(Trainer(config, build, data, comm_self())) as trainer:
        next(trainer.strategy.steps(trainer.train, trainer.state))  # modules are imported
    gc.collect()
    tracemalloc.start()
    try:
        with closing(Trainer(config, build, data, comm_self())) as trainer:
            steps = trainer.strategy.steps(trainer.train, trainer.state)
            all(islice(steps, 2))
            gc.collect()
            tracemalloc.reset_peak()
            next(steps)
            peak = tracemalloc.get_traced_memory()[1]
            steps.close()
            ready = [loader.standardised for loader in (trainer.train, trainer.test)]
            a = trainer.arrangement
            calls = pass_bytes(a, 0, 0, config.batch_size // config.micro_batches).calls
            lists = min(config.micro_batches, 2)  # one adds to gradients
            said = needed(a, 0, config.batch_size) + python_objects(a, lists * calls)
    finally:
        tracemalloc.stop()
    samples = sum(a.nbytes for x in ready if x is not None for a in arrays(x))
    assert said == pytest.approx(peak - samples, rel=0.02)


TEXT = Config(batch_size=16)
LAYERS = Config(model="mlp:784-512-512-10", batch_size=512)
KINDS = {
    "mlp": (LAYERS, None, DIGITS, 1),
    "mlp, tp": (replace(LAYERS, tp=2), None, DIGITS, 2),
    "mlp, zb-h1": (
        replace(LAYERS, pp=2, micro_batches=2, schedule="zb-h1"),
        None,
        DIGITS,
        2,
    ),
    "cnn": (Config(model="mnist-cnn", batch_size=64), None, DIGITS, 1),
    "cnn, tp": (Config(model="mnist-cnn", batch_size=64, tp=2), None, DIGITS, 2),
    "gpt": (TEXT, gpt, TOKENS, 1),
    "decoder, cp": (replace(TEXT, cp=2), DECODER, TOKENS, 2),
    "gpt, cp": (replace(TEXT, cp=2), gpt, TOKENS, 2),
    "decoder, tp": (replace(TEXT, tp=2), DECODER, TOKENS, 2),
    "gpt, tp": (replace(TEXT, tp=2), gpt, TOKENS, 2),
    "experts": (Config(batch_size=240), partial(MODELS["mixture"], POSITIONS), many_tokens, 1),
    "recurrent": (replace(TEXT, batch_size=32), Recurrent, TOKENS, 1),
}


LEAST = {"cnn": 0.87, "cnn, tp": 0.87, "experts": 0.94, "mlp, zb-h1": 0.82}
"""What calls without data use at least, over what the tape takes; 0.98 elsewhere."""


@pytest.mark.parametrize("kind", KINDS)
def test_passes_without_numbers_take_what_they_take_with_numbers(
    kind: str,
) -> None:
    """What calls without data use, beside what the tape takes with data: it also has objects in
    Python, a convolution the arrays of one slice while it makes those of the next, and the gradient
    of an output stays until its layer is done."""
    config, build, given, ranks = KINDS[kind]
    config, build = models.resolved(
        config if build is None else replace(config, model="own"), build
    )
    data = given()
    model = build_model(config, build, data)
    of_run = uncut(config, model, data, objectives.criterion(None))
    a, rank = on_paper(of_run, Cluster.on_paper(ranks)), ranks - 1
    samples = max(micro_batches(a, rank, config.batch_size))
    (s,) = a.model_on(rank).stages
    recorded(a, rank, s, samples, on_numbers.small)  # what is made once is there
    paper, real = (recorded(a, rank, s, samples, on).nbytes for on in (meta.like, on_numbers.small))
    assert 0 <= real.kept - paper.kept < 80_000
    least = LEAST.get(kind, 0.98)
    for half in Kind.B, Kind.I, Kind.W:
        start = paper.left if half is Kind.W else paper.kept
        of_tape = (real.left if half is Kind.W else real.kept) + real.more[half]
        assert least * of_tape < start + paper.more[half] <= of_tape


MLP = Config(model="mlp:64-64-64-64-10", data="synthetic:64:10:400", batch_size=32)


def arranged(**options: int | str) -> Arrangement:
    there = Candidate(**options)  # type: ignore[arg-type]
    return planning(MLP, there.dp * there.pp).arranger.arranged(there)


def test_gradients_of_outputs_stay_between_both_halves_of_a_backward_pass() -> None:
    """What layers with parameters read stays too: here inputs of two layers, the first of which
    another stage has sent; the first stage has the gradient of its output, and all else."""
    a = arranged(pp=2, schedule="zb-h1", micro_batches=4)
    assert [stage.layers for stage in a.division.stages] == [5, 3]
    first, last = (pass_bytes(a, s, s, 8) for s in range(2))
    assert last.left == 8 * 4 * (64 + 64 + 64 + 10)
    assert first.left == first.kept + 8 * 4 * 64


def test_a_stage_of_pipedream_keeps_as_many_batches_as_there_are_stages_from_it_on() -> None:
    a = arranged(pp=3, schedule="pipedream")
    for rank in range(3):
        of_batch = pass_bytes(a, rank, rank, 32).kept
        assert activations(a, rank, 32) == (3 - rank) * of_batch


def test_messages_between_stages_are_ahead_of_what_a_rank_works_on() -> None:
    """An activation and a gradient where a stage ends, and where one begins."""
    a = arranged(pp=2, micro_batches=4)
    assert [message_buffers(a, rank, 32) for rank in (0, 1)] == [8 * 4 * 64 * 2, 8 * 4 * 64 * 2]
    one = arranged(pp=2)
    assert [message_buffers(one, rank, 32) for rank in (0, 1)] == [0, 0]


def test_zero_receives_for_as_many_sums_as_it_has_slots() -> None:
    """Of three buckets, two are on their way at a time."""
    options = {"model": "mlp:64-128-128-128-10", "batch_size": 32, "bucket_mb": 0.1}
    a = small.arranged(Cluster.on_paper(2), zero=2, allreduce="ring", **options)
    lengths = [bucket.stop - bucket.start for bucket in a.model_on(0).buckets]
    assert len(lengths) == 3
    assert {*gradient_slots(chain_of(a, 0)).values()} == {0, 1}
    scattered = 2 * max(lengths) // 2 * 8
    assert scattered <= receive_buffers(a, 0, 32) < scattered + 200  # and scalars


def test_objects_that_a_user_has_frozen_stay_frozen() -> None:
    gc.freeze()
    with gc_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count()
