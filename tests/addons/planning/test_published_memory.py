"""The memory of a published layout: Llama 3 405B on 16,384 GPUs of 80 GB (Meta, "The Llama 3 Herd
of Models", 2024, table 4), without recomputation."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from nnmpi import Config
from nnmpi.addons.language.models.llama import Llama, LlamaSizes
from nnmpi.addons.planning.described import description_named
from nnmpi.addons.planning.paper.activations import activations, needed
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.planning.run.planning import PlanRequest, plan_models
from nnmpi.data import blank_windows
from nnmpi.nn import CrossEntropyLoss
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import uncut

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 126, 128, 16384, 128_256, 8192
KV_HEADS, HIDDEN = 8, 53_248
DP, TP, PP, MICRO_BATCHES, VIRTUAL = 128, 8, 16, 16, 8
BATCH = DP * MICRO_BATCHES  # 16 million tokens


@cache
def published() -> Arrangement:
    """FSDP that shards optimizer states and gradients, but not what forward passes have gathered,
    is ZeRO 2. Each of 128 stages is a layer; the first is the embedding, the last the output."""
    sizes = LlamaSizes(LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT, KV_HEADS, HIDDEN)
    data = blank_windows(VOCABULARY, CONTEXT, BATCH)
    config = Config(model="built", context=CONTEXT, batch_size=BATCH, dtype="bfloat16")
    of_model = uncut(config, Llama(sizes), data, CrossEntropyLoss())
    ranks = DP * TP * PP
    sheet = description_named("h100-sxm:8")
    assert sheet is not None
    cluster = Cluster.on_paper(ranks, ranks // sheet.ranks, sheet.device)
    request = PlanRequest(ranks, ranks // sheet.ranks, None, sheet.title)
    models = plan_models(request, of_model, cluster, sheet.machine("bfloat16"))
    graph, units = of_model.graph, models.costs.model.units
    begins = {graph.nodes[unit.nodes.start].name: unit.first for unit in units}
    firsts = [*(f"layers.{k}.input_layernorm" for k in range(LAYERS)), "norm"]
    layout = {
        "dp": DP,
        "tp": TP,
        "pp": PP,
        "zero": 2,
        "sequence_parallel": True,
        "schedule": "interleaved",
        "virtual_stages": VIRTUAL,
        "micro_batches": MICRO_BATCHES,
        "cut": ",".join(str(begins[name]) for name in firsts),
    }
    return models.arranger.arranged_by(replace(config, **layout))


class Terms(NamedTuple):
    """Bytes of a rank with a layer in each of its stages, by hand."""

    parameters: float
    gradients: float  # shards in 32 bits
    optimizer: float  # shards of masters and both moments in 32 bits
    slots: float  # two of the largest bucket, whose gradients are scattered: gates and ups
    activations: float


def by_hand() -> Terms:
    W, F, s, kv = WIDTH, HIDDEN, CONTEXT, KV_HEADS * (WIDTH // HEADS)
    of_layer = (W * (W + 2 * kv) + W * W + 3 * W * F) / TP + 2 * W
    parameters = VIRTUAL * of_layer
    # inputs and outputs of both norms, and what attention returns; queries, keys and values; gates,
    # ups and their products
    kept = s * (5 * W + (W + 2 * kv) + 3 * F) / TP * 2
    rows = 4 * s * (HEADS + 2) / TP  # the log of each sum of attention, and the scale of norms
    # with as many micro-batches as ranks along pp, all are forward before the first one goes back
    in_flight = MICRO_BATCHES * VIRTUAL
    return Terms(
        *(2 * parameters, 4 * parameters / DP, 12 * parameters / DP, 2 * 2 * 2 * W * F / TP),
        in_flight * (kept + rows),
    )


def test_the_published_layout_of_llama_3_405b_fits_into_80_gb() -> None:
    a = published()
    sizes = [needed(a, rank, BATCH) for rank in a.mesh.group(0, "pp")]
    assert max(sizes) == pytest.approx(77.6e9, rel=0.005)
    middle = a.mesh.group(0, "pp")[PP // 2 - 1]
    assert needed(a, middle, BATCH) == max(sizes)
    held, hand = memory(a, middle, BATCH), by_hand()
    assert held.parameters == pytest.approx(hand.parameters, rel=0.001)
    assert held.gradients == pytest.approx(hand.gradients, rel=0.001)
    assert held.optimizer == pytest.approx(hand.optimizer, rel=0.001)
    assert held.slots == pytest.approx(hand.slots, rel=0.001)
    assert activations(a, middle, BATCH) == pytest.approx(hand.activations, rel=0.001)
    # the rest is of the pass that runs: its temporaries, and messages
    assert max(sizes) - sum(hand) < 0.03 * max(sizes)
