"""The memory of a step, as it is traced, beside what is said of it."""

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import islice

import pytest
from helpers.training.laws_language import VOCABULARY, windows

from nnmpi import Config, Trainer, nn
from nnmpi import data as datasets
from nnmpi.comm import comm_self
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.parallel.arrangement.passing import needed

DIGITS = partial(datasets.load, "synthetic:1x28x28:10:600")
IMAGES = partial(datasets.load, "synthetic:3x32x32:10:40")
IN_PARTS = Config(model="mnist-cnn", batch_size=128, micro_batches=4)
CASES = {
    "mnist-cnn": (Config(model="mnist-cnn", batch_size=32), None, DIGITS),
    "mnist-cnn in micro-batches": (IN_PARTS, None, DIGITS),
    "cifar-cnn": (Config(model="cifar-cnn", batch_size=8), None, IMAGES),
    "gpt": (
        Config(batch_size=8),
        partial(nn.GPT, 2, 4, 64, VOCABULARY, 64),
        partial(windows, 40, 64),
    ),
}


@pytest.mark.parametrize(("config", "build", "given"), CASES.values(), ids=CASES)
def test_a_step_takes_the_memory_that_is_said(
    config: Config, build: Callable[[], nn.Module] | None, given: Callable[[], Dataset]
) -> None:
    """Within 5%, without the samples of the data set."""
    data = given()
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
            ready = [loader._ready for loader in (trainer.train, trainer.test)]
            said = needed(trainer.arrangement, 0, config.batch_size)
    finally:
        tracemalloc.stop()
    samples = sum(a.nbytes for x in ready if x is not None for a in arrays(x))
    assert said == pytest.approx(peak - samples, rel=0.05)
