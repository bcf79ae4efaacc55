"""Described machines: what is read of them, seconds by roofline, and exchanges that they hide."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nnmpi
from nnmpi import Config
from nnmpi.addons.planning.bound import LowerBounds
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.described import (
    description_named,
    machine_named,
    model_times,
    network_named,
)
from nnmpi.addons.planning.described.description import FOLDER, Description, read_description
from nnmpi.addons.planning.described.roofline import RooflineTimes
from nnmpi.addons.planning.machine import Machine
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.planning.run.explained import parts_of_step
from nnmpi.addons.planning.run.paper import MachineRequest, machine_on_paper
from nnmpi.addons.planning.run.planning import PlanModels, PlanRequest, on_paper
from nnmpi.addons.planning.step_time import step_time
from nnmpi.options.user_files import content
from nnmpi.parallel.tensor.sharding import UNSHARDED
from nnmpi.run.setup.cutting import uncut_of

NAMES = {"a100-80g", "a100-40g", "v100-32g", "h100-sxm", "a64fx", "tpu-v5p", "epyc-zen4"}


def fields(name: str = "a100-80g") -> dict:
    return tomllib.loads(content(FOLDER / f"{name}.toml", name, 10**6, "").decode())


def test_machines_are_listed_with_their_nodes():
    described = nnmpi.machines()
    assert {*described} == NAMES
    assert described["a100-80g"].peak["bfloat16"] == 312e12
    assert description_named("a100-80g:4").ranks == 4
    assert description_named("a100-80g").ranks == 8
    for d in described.values():  # every machine can be one of some type
        assert d.machine(next(iter(d.peak))).sheet.memory == d.memory_size


def test_a_file_of_a_user_is_read_like_those_of_the_package(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_bytes((FOLDER / "a64fx.toml").read_bytes())
    assert description_named(f"{file}:2") == nnmpi.machines()["a64fx"]._replace(ranks=2)


WRONG = tomllib.loads(Path(__file__).with_name("wrong_fields.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_by_its_name(field):
    with pytest.raises(ValueError, match=WRONG[field]["says"]):
        Description.from_fields({**fields(), field.split()[0]: WRONG[field]["value"]})


def test_what_is_no_machine_is_refused(tmp_path):
    (tmp_path / "bad.toml").write_text("ranks = ")
    with pytest.raises(ValueError, match=r"bad\.toml"):
        read_description(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="give one of a100-40g, a100-80g, a64fx"):
        description_named("a100")
    with pytest.raises(ValueError, match="a node has from 1"):
        description_named("a64fx:0")
    with pytest.raises(ValueError, match="a node has from 1"):
        description_named("a64fx:" + "9" * 5000)
    with pytest.raises(ValueError, match="is not known"):
        description_named("a" * 5000)
    with pytest.raises(ValueError, match=":RANKS is for described machines"):
        description_named("machine.json:4")
    with pytest.raises(ValueError, match=r"V100.* has no peak of bfloat16: use --dtype float16"):
        machine_named("v100-32g", "bfloat16")


def test_the_network_of_a_machine_has_two_levels():
    d = description_named("a100-80g:4")
    network = network_named("a100-80g:4")
    assert (network.per_node, network.inner, network.link) == (4, d.near, d.far)
    assert network.link.beta == pytest.approx(1 / (25e9 * 8 * d.far_share))


# ---- seconds by roofline

EXACT = {
    "products_share": 1.0,
    "products_start": 0.0,
    "memory_share": 1.0,
    "kernel_launch": 0.0,
    "peak": {"float32": 1e12},
    "memory_bandwidth": 1e30,
}
"""Figures by which a unit takes only the seconds of its operations."""


def machine(**more) -> Machine:
    return nnmpi.machines()["a100-80g"]._replace(**{**EXACT, **more}).machine("float32")


def seconds(of: Machine, model: str = "mlp:64-128-10", samples: int = 8, recompute: str = "none"):
    is_mlp = model.startswith("mlp")
    data = {"data": "synthetic:64:10:100"} if is_mlp else {"context": 32}
    config = Config(model=model, batch_size=8, recompute=recompute, **data)
    _, uncut = uncut_of(config, None if is_mlp else 100)
    times = model_times(uncut.graph, of, "float32")
    return times.units, times.of(UNSHARDED, config, samples)


def test_a_product_takes_its_operations_at_the_rate():
    units, times = seconds(machine())
    first = next(k for k, unit in enumerate(units) if "Linear" in unit.layers)
    operations = 2 * 8 * 64 * 128 / 1e12  # of samples x inputs x outputs
    np.testing.assert_allclose(times[first], [operations, 0.0, operations], atol=1e-20)
    last = [k for k, unit in enumerate(units) if "Linear" in unit.layers][-1]
    np.testing.assert_allclose(times[last], [2 * 8 * 128 * 10 / 1e12] * 3, atol=1e-20)


def test_a_kernel_takes_the_longer_of_operations_and_bytes():
    units, slow = seconds(machine(memory_bandwidth=1e6))
    first = next(k for k, unit in enumerate(units) if "Linear" in unit.layers)
    elements = 8 * (64 + 128) + 64 * 128 + 128  # input, output, weights
    relu = 4 * 2 * 8 * 128 if "ReLU" in units[first].layers else 0
    np.testing.assert_allclose(slow[first, 0], (4 * elements + relu) / 1e6, rtol=1e-9)
    _, started = seconds(machine(products_start=2.0))
    assert started[first, 0] == pytest.approx(2.0)


def test_a_pass_of_a_block_takes_no_less_than_the_launches_of_its_kernels():
    units, launched = seconds(machine(kernel_launch=1.0), "gpt:2x4x16")
    blocks = [[k for k, u in enumerate(units) if f".{n}." in u.path] for n in range(2)]
    forward, back = launched[blocks[0], 0].sum(), launched[blocks[0], 1:].sum()
    assert (forward, back) == (forward.round(), back.round())  # a second for each kernel
    assert 10 < forward < back < 40
    _, busy = seconds(machine(kernel_launch=1.0, products_start=100.0), "gpt:2x4x16")
    _, alone = seconds(machine(products_start=100.0), "gpt:2x4x16")
    np.testing.assert_allclose(busy[blocks[1]], alone[blocks[1]])  # the host is ahead
    _, part = seconds(machine(kernel_launch=1.0, products_start=0.5), "gpt:2x4x16")
    np.testing.assert_allclose(part[blocks[0], 0].sum(), forward)  # whatever a kernel takes


def test_scores_of_attention_are_traffic_unless_it_is_flash():
    def attention(flash: bool):
        slow = machine(memory_bandwidth=1e6)
        of = slow._replace(sheet=slow.sheet._replace(flash=flash))
        units, times = seconds(of, "gpt:1x4x16")
        return next(times[k, 0] for k, u in enumerate(units) if "SelfAttention" in u.layers)

    made, scores = 8 * 32 * 16, 8 * 32 * 32 * 4
    assert attention(True) == pytest.approx(4 * 4 * made / 1e6)
    assert attention(False) == pytest.approx((2 * (4 * scores + 8 * made) + 8 * scores) / 1e6)


def kernels(layer: str, column: int, model: str, dtype: str = "float32", flash: bool = True):
    """Bytes that the first node of a kind moves in a pass, for 8 samples of 32 positions."""
    d = nnmpi.machines()["a100-80g"]._replace(**{**EXACT, "memory_bandwidth": 1.0, "flash": flash})
    of = d._replace(peak={dtype: 1e30}).machine(dtype)
    _, uncut = uncut_of(Config(model=model, context=32, batch_size=8), 100)
    times = RooflineTimes(uncut.graph, of, dtype, of.sheet)._of_nodes(UNSHARDED, 8)
    node = next(k for k, node in enumerate(uncut.graph.nodes) if node.kind == layer)
    return times[node, column]


MADE = 8 * 32 * 64  # numbers of an output of width 64

TRAFFIC = {
    "queries 4, keys and values of 2": ("SelfAttention", 0, 4 * MADE * (2 + 2 + 2) / 2),
    "and back": ("SelfAttention", 1, 2 * 4 * MADE * (2 + 2 + 2) / 2),
    "RMSNorm": ("RMSNorm", 0, 4 * 2 * MADE),
    "RMSNorm back": ("RMSNorm", 1, 4 * 3 * MADE),
    "of its weights": ("RMSNorm", 2, 4 * (2 * MADE + 3 * 64)),
}


@pytest.mark.parametrize("case", TRAFFIC)
def test_a_layer_moves_its_bytes(case):
    layer, column, nbytes = TRAFFIC[case]
    assert kernels(layer, column, "llama:1x4x64:2") == pytest.approx(nbytes)
    double = kernels(layer, column, "llama:1x4x64:2", "float64")
    assert double == pytest.approx(2 * nbytes)


def test_the_gradient_of_the_loss_belongs_to_the_input():
    _, times = seconds(machine(memory_bandwidth=1.0), "mlp:64-128-10")
    row = times[-1] if times[-1].any() else times[-2]
    product, scores = 4 * (8 * (128 + 10) + 1290), 8 * 10
    expected = product + scores * (4 + 36), product + scores * (4 + 12), product + 3 * 4 * 1290
    np.testing.assert_allclose(row, expected)


@pytest.mark.parametrize(
    ("dtype", "momentum", "nbytes"),
    [("float32", 0.9, 20), ("float32", 0.0, 12), ("float64", 0.9, 40), ("bfloat16", 0.9, 24)],
)
def test_an_update_of_sgd_reads_and_writes_its_momentum(dtype, momentum, nbytes):
    d = nnmpi.machines()["a100-80g"]
    assert d.machine(dtype, momentum).updates["sgd"] == pytest.approx(nbytes / d.moved)


def test_blocks_that_are_computed_again_add_their_forward_passes():
    units, plain = seconds(machine(), "gpt:2x4x16")
    _, block = seconds(machine(), "gpt:2x4x16", recompute="block")
    _, selective = seconds(machine(), "gpt:2x4x16", recompute="selective")
    is_block = np.array([".1." in u.path or ".0." in u.path for u in units])
    is_attention = np.array(["SelfAttention" in u.layers for u in units])
    np.testing.assert_allclose((block - plain)[:, 1], is_block * plain[:, 0])
    np.testing.assert_allclose((selective - plain)[:, 1], is_attention * plain[:, 0])


# ---- steps

CONFIG = {"model": "gpt:2x4x64", "context": 32, "batch_size": 32}


def models(**more) -> PlanModels:
    of = nnmpi.machines()["a100-80g"]._replace(ranks=2, **more).machine("float32")
    request = PlanRequest(8, 4, None, "a100-80g:2", 100)
    return on_paper(Config(**CONFIG), request, MachineRequest(of, 4, "cuda"))


def step(found: PlanModels, **layout):
    a = found.arranger.arranged_by(replace(found.arranger.plain, **layout))
    return a, step_time(a, found.costs)


def test_hidden_exchanges_take_no_time_where_computing_is_longer():
    layout = {"dp": 4, "tp": 2}
    _, plain = step(models(), **layout)
    a, hidden = step(models(hides=("tp",), near_bandwidth=1e15), **layout)
    assert plain.tensor > 0
    assert hidden.tensor < plain.tensor
    assert hidden.compute == plain.compute
    _, parts = parts_of_step(a, (found := models(hides=("tp",))).costs)
    a, time = step(found, **layout)
    assert any(part.what == "hidden behind passes" and part.term == "tensor" for part in parts)
    assert sum(part.seconds for part in parts) == pytest.approx(time.seconds)
    _, dp = step(models(hides=("dp",)), dp=2, tp=1, pp=4, order="dp,tp,pp")
    _, shown = step(models(), dp=2, tp=1, pp=4, order="dp,tp,pp")  # sums on a node
    assert dp.sums < shown.sums


def test_a_device_without_zero_holds_the_whole_optimizer_state():
    found = models()
    bounds = LowerBounds(found.arranger, found.costs)
    for zero in (0, 1):
        a, _ = step(found, dp=8, zero=zero)
        held = max(memory(a, rank, 32).total for rank in range(8))
        least = bounds.nbytes(Candidate(dp=8, zero=zero))
        assert 0.97 * held < least <= held, zero


def test_ranks_along_tp_send_a_part_each_to_the_next_stage():
    layout = {"dp": 1, "tp": 2, "pp": 4, "micro_batches": 4}
    slow = {"far_bandwidth": 1e7, "far_nics": 1}
    _, whole = step(models(divides=(), **slow), **layout)
    _, parts = step(models(divides=("pp",), **slow), **layout)
    assert parts.bubble == pytest.approx(whole.bubble / 2, rel=0.05)
    # a run sends parts of positions, which are not divided again
    layout["sequence_parallel"] = True
    of_both = [step(models(divides=d, **slow), **layout)[1] for d in ((), ("pp",))]
    assert of_both[0] == of_both[1]


def test_recomputed_blocks_exchange_again_what_their_forward_passes_did():
    found = models()
    _, plain = step(found, dp=4, tp=2)
    _, again = step(found, dp=4, tp=2, recompute="block")
    # two sums of each block forward and back, and those of the embedding and the head
    assert 1.3 < again.tensor / plain.tensor < 1.6
    assert again.compute > plain.compute


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("layout", [{"dp": 2, "pp": 2, "tp": 2}, {"dp": 1, "pp": 4, "tp": 2}])
def test_a_term_is_not_what_rounding_leaves(layout, schedule):
    """Of a difference of equal sums, which may be negative."""
    found = models(hides=("tp", "dp"))
    for micro_batches in (4, 8):
        _, time = step(found, **layout, schedule=schedule, micro_batches=micro_batches)
        assert all(term == 0 or term > 1e-12 for term in time)


def test_a_described_machine_says_how_many_nodes_and_which_device():
    assert machine_on_paper("a100-80g:8", 12, None, Config(dtype="float32"))[1:] == (2, "cuda")
    assert machine_on_paper("a100-80g:8", 12, 3, Config(dtype="float32"))[1:] == (3, "cuda")
    assert machine_on_paper(None, 12, None, Config())[1:] == (1, "cpu")
    notes = models(hides=("dp",)).notes
    assert any("along dp are hidden" in note for note in notes)
