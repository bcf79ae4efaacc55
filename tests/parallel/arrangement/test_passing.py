"""The memory of a step, as it is traced, beside what is said of it."""

import gc
import tracemalloc
from contextlib import closing
from itertools import islice

import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import comm_self
from nnmpi.data.inputs import arrays
from nnmpi.parallel.arrangement.passing import needed

DIGITS, IMAGES = "synthetic:1x28x28:10:600", "synthetic:3x32x32:10:40"
CASES = {
    "mnist-cnn": Config(model="mnist-cnn", data=DIGITS, batch_size=32),
    "mnist-cnn in micro-batches": Config(
        model="mnist-cnn", data=DIGITS, batch_size=128, micro_batches=4
    ),
    "cifar-cnn": Config(model="cifar-cnn", data=IMAGES, batch_size=8),
    "gpt": Config(model="gpt:2x4x64", data="text", context=64, batch_size=8),
}


def of_data(trainer: Trainer) -> int:
    """Bytes of the samples, as they are and as they are trained on."""
    found = {}
    for loader in (trainer.train, trainer.test):
        ready = () if loader._ready is None else arrays(loader._ready)
        found |= {id(a): a.nbytes for a in (*arrays(loader.split.x), loader.split.y, *ready)}
    return sum(found.values())


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_a_step_takes_the_memory_that_is_said(config: Config) -> None:
    """Within 5%; without the samples of the data set."""
    gc.collect()
    tracemalloc.start()
    try:
        with closing(Trainer(config, comm=comm_self())) as trainer:
            steps = trainer.strategy.steps(trainer.train, trainer.state)
            all(islice(steps, 2))
            gc.collect()
            tracemalloc.reset_peak()
            next(steps)
            peak = tracemalloc.get_traced_memory()[1]
            steps.close()
            samples = of_data(trainer)
            said = needed(trainer.arrangement, 0, config.batch_size)
    finally:
        tracemalloc.stop()
    assert said == pytest.approx(peak - samples, rel=0.05)
