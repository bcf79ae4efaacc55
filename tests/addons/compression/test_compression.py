"""Codecs on a device, and layouts in which gradients cannot be compressed."""

from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device
from helpers.training.laws_compression import COMMON, blurred, residual
from helpers.training.laws_language import many_tokens
from helpers.training.on_paper import arranged
from helpers.training.transformer_models import Decoder

from nnmpi import Config, Trainer, nn
from nnmpi.addons.compression.alone import codec_call
from nnmpi.addons.compression.blocks import PACKINGS, start_mean
from nnmpi.addons.compression.codecs import CODECS, CodecInput
from nnmpi.addons.compression.exchange import Exchange
from nnmpi.arrays.backend import CPU, Backend, to_host
from nnmpi.comm import Comm, thread_ranks
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.wire import wire_of

SHAPES = [(30, 70), (1, 7), (4, 90), (3, 2)]
NUMBERS = {"topk": 0.05, "powersgd": 2}
MEANS = {f"mean in {form}": form for form in PACKINGS}


@needs_device
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*CODECS, *MEANS])
def test_a_device_sums_as_the_host_does(name: str) -> None:
    def law(comm: Comm) -> None:
        on_host, on_device = _sums(comm, CPU, name), _sums(comm, DEVICE, name)
        for a, b in zip(on_host, on_device, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)

    thread_ranks.run(2, law)


def _sums(comm: Comm, on: Backend, name: str) -> list[np.ndarray]:
    """Of a codec the sums, what is kept and the factors; of a mean in some form its values."""
    sizes, wire = [*map(prod, SHAPES)], wire_of(comm, on)

    def drawn(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(sum(sizes), np.float32)

    row, factors = on.asarray(drawn(comm.rank)), on.asarray(drawn(9))
    if name in MEANS:
        start_mean(row, wire, MEANS[name]).wait()
        return [to_host(row).copy()]
    bucket = CodecInput(row, SHAPES, sizes, np.dtype("float32"), wire, "ring", factors)
    work = Exchange(CODECS[name].sum(bucket, NUMBERS.get(name, 0)))
    work.wait()
    return [to_host(array).copy() for array in (work.result, row, factors)]


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_is_measured_by_what_it_encodes(name: str) -> None:
    """More is touched than its row, which is copied before."""
    spec = f"{name}:{NUMBERS[name]}" if name in NUMBERS else name
    parameters = [*nn.Linear(40, 30).parameters()]
    call, touched = codec_call(spec, parameters)
    call()
    row = sum(p.size for p in parameters) * 4
    assert touched >= 3 * row
    assert codec_call(spec, [*parameters, *nn.Linear(40, 30).parameters()])[1] > 1.5 * touched


def test_terms_of_gradients_along_tp_are_refused() -> None:
    """Their residuals would differ between ranks that have copies of a parameter."""
    model = partial(Decoder, 17, 6, 1, 4, 16, 0)
    options: dict[str, Any] = {"build": model, "given": many_tokens, "compress": "sign", "tp": 2}
    with refused("compress sign", "2 ranks along tp", "leave out --sequence-parallel"):
        arranged(Cluster.on_paper(4), **options, sequence_parallel=True)
    assert arranged(Cluster.on_paper(4), **options).store.name == "compressed"
    assert arranged(Cluster.on_paper(2), **options).store.name == "local"  # dp is 1


def test_a_step_that_is_skipped_keeps_the_residuals() -> None:
    """They are written when the step is made, although the exchange has computed the next ones."""

    class Residuals:
        def __init__(self) -> None:
            self.after, self.is_finite = list[np.ndarray](), True

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.is_finite = event["step"] != 2  # of the next step
            parameters = enumerate(trainer.optimizer.parameters)
            self.after.append(np.concatenate([residual(trainer, j, p.size) for j, p in parameters]))

    def rank(comm: Comm) -> None:
        kept = Residuals()
        options: dict[str, Any] = {**COMMON, "compress": "topk:0.1", "steps": 4, "log_every": 1}

        def loss(scores: Any, labels: Any) -> Any:
            mean = nn.CrossEntropyLoss()(scores, labels)
            root_of_0 = ((scores - scores.detach()) ** 2).sum().sqrt()  # without a gradient
            return mean if kept.is_finite else mean + root_of_0

        with Trainer(Config(**options), None, blurred(), comm, loss=loss, callbacks=[kept]) as t:
            assert t.fit(NullReport())["skipped_steps"] == 1
        first, second, skipped, last = kept.after
        assert np.any(first != second)
        assert skipped.tobytes() == second.tobytes()
        assert np.any(last != skipped)

    thread_ranks.run(2, rank)
