"""Segments of graphs, and what the graph says of them, beside passes through the model."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.training import laws_pipeline_cuts as cuts
from helpers.training.laws_pipeline_models import BLOCKS, blocks
from helpers.training.unusual_models import Residual, frozen, spoilt

import nnmpi
from nnmpi import Tensor, nn
from nnmpi.nn.graph import Graph
from nnmpi.nn.models import MODELS
from nnmpi.nn.segment import segment
from nnmpi.nn.tracing import trace
from nnmpi.parallel.arrangement.partition import layers

DIGITS = (1, 8, 8)
WORDS = (cuts.LENGTH,)
MADE: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], str]] = {
    **{name: (partial(blocks, f), [DIGITS], "float64") for name, f in BLOCKS.items()},
    **{name: (model.build, [DIGITS], "float64") for name, model in cuts.MODELS.items()},
    "frozen": (frozen, [DIGITS], "float64"),
    "spoilt": (spoilt, [DIGITS], "float64"),
    "skip": (Residual, [DIGITS], "float64"),
    "digits-cnn": (MODELS["digits-cnn"], [DIGITS], "float64"),
    "mnist-cnn": (MODELS["mnist-cnn"], [(1, 28, 28)], "float64"),
    "conv": (cuts.conv_net, [DIGITS], "float64"),
    "words": (partial(cuts.Reader, 1), [WORDS], "int64"),
    "places": (partial(cuts.Reader, 2), [WORDS, WORDS], "int64"),
}
every_model = pytest.mark.parametrize("name", MADE)


def made(name: str) -> tuple[nn.Module, Graph, Callable[[int], tuple[Tensor, ...]]]:
    """A model, its graph, and samples for it."""
    build, shapes, dtype = MADE[name]
    model, rng = build(), np.random.default_rng(0)

    def samples(n: int) -> tuple[Tensor, ...]:
        return tuple(
            nnmpi.tensor(rng.integers(0, 6, (n, *shape)).astype(dtype)) for shape in shapes
        )

    graph = trace(model, lambda n: (samples(n), {}), "float64")
    model.to("float64")
    return model, graph, samples


def parts(y: Any) -> tuple[Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


def starts(graph: Graph) -> list[int]:
    return [layer.nodes.start for layer in layers(graph)]


@every_model
def test_segments_compute_what_the_model_computes(name: str) -> None:
    """With a cut in front of every layer, in training and in evaluation."""
    model, graph, samples = made(name)
    made_of = [
        segment(model, graph, range(a, b)) for a, b in pairwise([*starts(graph), len(graph.nodes)])
    ]
    for training in (True, False):
        model.train(training)
        model.to("float64")  # running statistics as at the start
        for n in (5, 2):
            x = samples(n)
            y: Any = x
            model.apply(lambda m: object.__setattr__(m, "passes", 0))
            for part in made_of:
                part.train(training)
                y = part(*parts(y))
            if not training:  # Dropout is keyed by the pass, which is counted in each part
                assert np.allclose(y.numpy(), model(*x).numpy(), rtol=1e-12, atol=1e-12)
