"""Ways of layers that a layout gives, in a file, in a text, and in the library."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.traced import traced

import nnmpi
from nnmpi import Config, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.graph import Graph
from nnmpi.nn.models import digits_cnn, mnist_cnn
from nnmpi.options import value_forms
from nnmpi.options.cli import from_layout, layout_file
from nnmpi.parallel.tensor.constraints import Constraints
from nnmpi.parallel.tensor.parallelize import parallelize
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.ways import (
    GATHER_INPUT,
    LAYOUT_AXES,
    SAMPLE_CUT,
    SCATTER_GRADIENT,
)

TRICK = {"0": "samples", "3": "samples"}


def test_convolutions_by_samples_and_products_by_channels() -> None:
    graph = traced(mnist_cnn(), 1, 28, 28)
    found = shard(graph, 2, constraints=Constraints(ways=TRICK))
    assert [layer.how for layer in found.layers] == [
        "samples",
        "samples",
        "column",
        "row",
        "column",
    ]
    sends = [[one.message for one in layer.sends] for layer in found.layers]
    assert sends[:3] == [[], [], [GATHER_INPUT, SCATTER_GRADIENT]]
    assert {graph.variables[v].path for v in found.partial_gradients} == {
        *("0.weight", "0.bias", "3.weight", "3.bias")
    }
    assert [e for e, cut in found.edges.items() if cut is SAMPLE_CUT] == [1, 2, 3, 4, 5, 6, 7]


def test_without_ways_nothing_is_computed_by_samples() -> None:
    found = shard(traced(mnist_cnn(), 1, 28, 28), 2)
    assert not found.partial_gradients
    assert SAMPLE_CUT not in found.edges.values()


def trains(comm: Comm, ways: dict[str, str]) -> None:
    """Without a Trainer: the number of samples is told by the ranks, or by the whole input."""
    x = np.random.default_rng(0).standard_normal((5, 2, 6, 6))
    runs = []
    for is_cut in (True, False):
        with nnmpi.seeded(3):
            model = nn.Sequential(
                *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Dropout(0.4), nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 3)),
            ).to("float64")
        if is_cut:
            parallelize(model, comm, x, whole_output=True, ways=ways)
        passes = []
        for rows in (x, x[:1], x[:3]):
            y = model(nnmpi.tensor(rows))
            (y * y).sum().backward()
            passes.append(y.numpy())
        gradient = model[0].weight.grad.copy()
        if is_cut:
            comm.all_reduce(gradient)
        runs.append((*passes, gradient, model[1].running_var))
    for got, want in zip(*runs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_by_samples_equals_one_rank_without_a_trainer(ranks: int) -> None:
    threads.run(ranks, trains, {"?": "samples", "6": "column"})


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ({"9": "spiral"}, "layout 9=spiral: the ways of 9 are copy, column, row, samples"),
        ({"1": "samples"}, r"1 \(ReLU\) is cut as the layer before it"),
        ({"conv*": "samples"}, "the model has no such layer"),
        ({"0": "samples", "9": "row", "7": "samples"}, "no way was found .* 9=row"),
    ],
)
def test_ways_that_cannot_be_are_refused(ways: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shard(traced(mnist_cnn(), 1, 28, 28), 2, constraints=Constraints(ways=ways))


def test_a_stage_may_not_begin_in_the_midst_of_samples() -> None:
    options = {"model": "digits-cnn", "pp": 2, "tp": 2, "cut": "4", "layout": "?=samples"}
    with pytest.raises(ValueError, match=r"stage 1 begins with 4, .* use a --cut"):
        threads.run(4, lambda comm: nnmpi.Trainer(Config(**options), comm=comm).close())


def attention() -> Graph:
    of_words = nn.Embedding(11, 8), nn.PositionalEmbedding(6, 8), nn.LayerNorm(8)
    attend = nn.Linear(8, 24), nn.SelfAttention(2, is_causal=True), nn.Linear(8, 8)
    within = nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Linear(8, 11, bias=False)
    model = nn.Sequential(*of_words, *attend, *within, nn.ChannelsFirst())
    return traced(model, 6, given="int64")


OF_ANY = (set[str](), {"channels"}, {"batch"}, {"batch", "channels"})
HAS_ROWS = "rows" in LAYOUT_AXES.where  # of an add-on
OF_IMAGES = ({"rows"}, {"rows", "channels"}, {"rows", "batch"}) if HAS_ROWS else ()
CNN, SMALL_CNN = traced(mnist_cnn(), 1, 28, 28), traced(digits_cnn(), 1, 8, 8)


@pytest.mark.parametrize(
    ("graph", "names"),
    [*product((CNN, attention()), OF_ANY), *product((CNN, SMALL_CNN), OF_IMAGES)],
)
def test_ways_that_the_search_finds_give_its_plan_again(graph: Graph, names: set[str]) -> None:
    found = shard(graph, 2, constraints=Constraints(frozenset(names), {}, 64))
    again = shard(graph, 2, constraints=Constraints(ways=found.ways))
    assert [layer._replace(why="") for layer in again.layers] == [
        layer._replace(why="") for layer in found.layers
    ]


# ---- names of axes


def names(graph: Graph) -> list[str]:
    made = [graph.inputs[0], *(e for node in graph.nodes for e in node.outputs)]
    rows = (" ".join(axis.name for axis in graph.edges[e].axes) for e in made)
    return [*dict.fromkeys(rows)]


def test_axes_have_names() -> None:
    assert names(traced(mnist_cnn(), 1, 28, 28)) == [
        *("batch channels rows columns", "batch channels", "batch vocabulary")
    ]
    assert names(attention()) == [
        *("batch length", "batch length channels", "batch length heads"),
        *("batch length vocabulary", "batch vocabulary length"),
    ]
    mixture = nn.Sequential(nn.Linear(4, 6), nn.MixtureOfExperts(6, 5, num_experts=3, top_k=1))
    assert "batch experts" in names(traced(mixture, 4))


def ways_of(cuts: str, samples: int, ranks: int = 2) -> str:
    constraints = Constraints(value_forms.layout(cuts).along("tp"), {}, samples)
    found = shard(traced(mnist_cnn(), 1, 28, 28), ranks, constraints=constraints)
    return " ".join(layer.how for layer in found.layers)


def test_names_of_axes_choose_among_ways() -> None:
    assert ways_of("channels:tp", 64) == "column row column row column"
    assert ways_of("batch:dp,batch:tp", 64) == "samples samples samples samples samples"
    assert ways_of("vocabulary:tp", 64) == "copy copy copy copy column"


def test_ways_are_for_the_layers_that_they_name() -> None:
    """Others are divided along the axes that the layout names, and no others."""
    constraints = Constraints(frozenset({"vocabulary"}), {"3": "samples"}, 64)
    found = [layer.how for layer in shard(CNN, 2, constraints=constraints).layers]
    assert found == ["copy", "samples", "copy", "copy", "column"]


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        ("heads:tp", "layout heads:tp: no layer has an axis heads"),
        ("columns:tp", "columns cannot be cut along 'tp'"),
        ("batch:cp", "batch cannot be cut along 'cp', only along dp or tp"),
        ("bath:tp", "'bath:tp' is neither AXIS:dp"),
        ("0=samples,0=row", "with each layer only once"),
    ],
)
def test_axes_that_cannot_be_cut_are_refused_by_name(cuts: str, words: str) -> None:
    with refused(words):
        ways_of(cuts, 64)
    with pytest.raises(
        ValueError, match=r"vocabulary among 12 ranks; the longest such axis has 10, in 11"
    ):
        ways_of("vocabulary:tp", 64, ranks=12)


# ---- files


def test_a_file_has_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(layout_file(Config(tp=2, dp=2, zero=1, model="mnist-cnn"), TRICK))
    wanted = {"dp": 2, "tp": 2, "zero": 1, "layout": "0=samples,3=samples"}
    assert from_layout(str(path)) == wanted
    with refused("from_layout"):
        Config(layout=str(path))
    path.write_text(layout_file(Config(pp=2), {}))
    assert from_layout(str(path)) == {"pp": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = 0.1", "lr is not an option of layouts"),
        ("tp = 2\nways = 3", "ways must be a table"),
        ("tp = 2\n[ways]\n0 = 3", "ways of 0: 3 is not a string"),
        ("[ways]\n" + ".".join("a" * 3000) + " = 1", "ways of a: of type dict is not a string"),
        ("tp = 2\n[ways]\nfeatures.0 = 'column'", '"features.0" = "samples"'),
        ("tqp = 2", "tqp is not an option"),
        ("tp 2", "it is not TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with refused("plan.toml", words):
        Config(**from_layout(str(path)))
