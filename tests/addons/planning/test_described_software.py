"""What a description says of software, priced by hand: tiles of products, seconds of the host, and
gathers of ZeRO behind computing."""

import re
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from helpers.planning import parts_add_up

import nnmpi
from nnmpi import Config
from nnmpi.addons.planning.bound import LowerBounds
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.described.description import FOLDER, Description, read_description
from nnmpi.addons.planning.list_times import unit_begins
from nnmpi.addons.planning.run.paper import MachineRequest
from nnmpi.addons.planning.run.planning import PlanModels, PlanRequest, on_paper
from nnmpi.addons.planning.step_time import StepTime
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.step_list.chain import chain_of

CONFIG: dict[str, Any] = {"model": "gpt:2x4x64", "context": 32, "batch_size": 32, "bucket_mb": 0.1}
RATE, ALPHA, BANDWIDTH = 1e12, 1e-6, 1e9
PLAIN = nnmpi.machines()["a100-80g"]._replace(
    hides=(),
    peak={"float32": RATE},
    products_share=1.0,
    products_start=0.0,
    memory_bandwidth=1e30,
    memory_share=1.0,
    kernel_launch=0.0,
    sums={},
    near_alpha=ALPHA,
    near_bandwidth=BANDWIDTH,
    near_share=1.0,
    far_alpha=ALPHA,
    far_bandwidth=BANDWIDTH,
    far_nics=1,
    far_share=1.0,
)
"""A machine on which only operations and bytes between ranks take time."""


def models(sheet: Description) -> PlanModels:
    nodes = 8 // sheet.ranks
    request = PlanRequest(8, nodes, None, "a100-80g", 100)
    return on_paper(
        Config(**CONFIG), request, MachineRequest(sheet.machine("float32"), nodes, "cuda")
    )


def step(sheet: Description, **layout: object) -> tuple[Arrangement, StepTime, PlanModels]:
    """The step of a layout; the parts of --explain add up to its terms."""
    found = models(sheet)
    a = found.arranger.arranged_by(Config(**CONFIG | layout))
    return a, parts_add_up(a, found.costs), found


# ---- the host


def test_the_host_takes_seconds_for_micro_batches_and_parameters() -> None:
    layout = {"dp": 4, "pp": 2, "micro_batches": 4}
    waiting = PLAIN._replace(host_micro_batch=2.0, host_parameter=0.5)
    (a, plain, _), (_, time, found) = (step(sheet, **layout) for sheet in (PLAIN, waiting))
    parameters = [len(a.model_on(rank).trained) for rank in a.mesh.group(0, "pp")]
    assert sum(parameters) == len(a.graph.variables) + 1  # both stages have the embedding
    assert time.other == plain.other + 4 * 2.0 + max(parameters) * 0.5
    assert time._replace(other=plain.other) == plain
    assert any("2000 ms in each micro-batch, and 500000 us" in note for note in found.notes)


# ---- gathers of ZeRO


def ring(a: Arrangement) -> list[float]:
    """The seconds in which 8 ranks gather each bucket, or scatter it, in the order of layers."""
    sizes = [4 * (bucket.stop - bucket.start) for bucket in a.model_on(0).buckets]
    return [7 * (ALPHA + nbytes / 8 / BANDWIDTH) for nbytes in sizes]


@pytest.mark.parametrize("zero", [1, 2])
def test_gathers_behind_the_update_run_behind_the_next_forward_pass(zero: int) -> None:
    """All except the first two, since embeddings take no time: each behind the pass of the unit in
    front, as far as that lasts."""
    sheet, layout = PLAIN._replace(ranks=2), {"dp": 8, "zero": zero, "micro_batches": 2}
    a, plain, _ = step(sheet, **layout)
    gathers = ring(a)
    assert len(gathers) > 3
    slow = {"peak": {"float32": 1e9}}
    _, long, _ = step(sheet._replace(**slow), **layout)
    _, hidden, found = step(sheet._replace(hides=("zero1",), **slow), **layout)
    assert long.update - hidden.update == pytest.approx(sum(gathers[2:]))
    _, short, _ = step(sheet._replace(hides=("zero1",)), **layout)
    last = unit_begins(a, chain_of(a, 0), 0)[-1]
    in_front = [unit.nodes.start < last for unit in found.costs.model.units]
    forward = found.costs.model.of(a.sharding, a.config, 2)[in_front, 0].sum() * 1e9 / RATE
    assert 0 < forward < sum(gathers[2:])
    assert plain.update - short.update == pytest.approx(forward)
    assert short._replace(update=plain.update) == pytest.approx(plain)


def test_gathers_of_zero_3_on_a_node_run_behind_passes() -> None:
    """Nothing hides the gathers for the first layers, nor their scatters at the end, nor what is
    gathered in front of and behind the last unit, whose neighbour has a norm alone."""
    sheet, layout = PLAIN._replace(peak={"float32": 1e9}), {"dp": 8, "zero": 3}
    a, plain, found = step(sheet, **layout)
    _, hidden, _ = step(sheet._replace(hides=("zero3",)), **layout)
    exchanges = found.costs.exchanges
    assert exchanges.links(a.mesh.group(0, "dp")).node_count == 1
    assert plain.sums > 2 * sum(ring(a))
    first, second, third, _ = ring(a)  # the first one has the embedding, which is the head too
    around_last, at_ends = first + third, 2 * (first + second)
    assert hidden.sums == pytest.approx(around_last + at_ends)
    _, dp, _ = step(sheet._replace(hides=("dp",)), **layout)
    assert dp == hidden


def test_hidden_gathers_lower_the_bound_of_a_step() -> None:
    """By which searches leave layouts out."""
    sheet = PLAIN._replace(ranks=2, far_bandwidth=1e8, peak={"float32": 1e9})
    layout = {"dp": 8, "zero": 1}
    _, time, found = step(sheet._replace(hides=("zero1",)), **layout)
    shown = models(sheet)
    bound, of_shown = (
        LowerBounds(m.arranger, m.costs).with_sums(Candidate(**layout)) for m in (found, shown)
    )
    assert bound <= time.seconds < of_shown


# ---- tiles


def products(sheet: Description, samples: int = 2, **layout: object) -> dict[str, list[float]]:
    """The operations of the passes of each layer of the first block."""
    found = models(sheet)
    sharding = found.arranger.sharding(Candidate(**layout))
    times, nodes = found.costs.model, found.arranger.graph.nodes
    of_nodes = times._of_nodes(sharding, samples) * RATE
    return {
        node.name.removeprefix("h.0."): of_nodes[k].tolist()
        for k, node in enumerate(nodes)
        if node.name.startswith("h.0.") and of_nodes[k].any()
    }


def test_products_are_computed_in_whole_tiles() -> None:
    """Lengths 64 (samples x positions), 64 (width) and 192 (queries, keys and values)."""
    whole = products(PLAIN)
    assert whole["attn.c_attn"] == pytest.approx([2 * 64 * 64 * 192] * 3)
    tiled = products(PLAIN._replace(products_tile=50))
    long, square = 2 * 4 * 50**2, 2 * 2 * 50**2
    assert tiled["attn.c_attn"] == pytest.approx([2 * long * 64, 2 * square * 192, 2 * long * 64])
    # of attention, scores of 32 x 32 and values of 32 x 16 are one tile each, of 4 heads
    assert whole["attn.attend"][0] == pytest.approx(2 * 2 * 4 * 32 * 32 * 16 * 2)
    assert tiled["attn.attend"][0] == pytest.approx(2 * 2 * 4 * 50**2 * (16 + 32))


def test_tiles_are_computed_so_many_at_once() -> None:
    some = products(PLAIN._replace(products_tile=50, products_at_once=6))
    count = 2 * 4  # of 64 x 192
    assert some["attn.c_attn"][0] == pytest.approx(2 * 64 * 50**2 * 6 * ceil(count / 6))


def test_a_rank_along_tp_computes_tiles_of_its_part() -> None:
    """Of the first layer half of the outputs, of the second half of the inputs."""
    tiled = products(PLAIN._replace(products_tile=50), dp=4, tp=2)
    assert tiled["attn.c_attn"][2] == pytest.approx(2 * 64 * 50**2 * (2 * 2))  # 64 x 96
    assert tiled["attn.c_proj"][2] == pytest.approx(2 * 64 * 50**2 * (1 * 2))  # 32 x 64
    assert tiled["attn.c_proj"][0] == pytest.approx(2 * 32 * 50**2 * (2 * 2))  # 64 x 64
    assert tiled["attn.attend"][0] == pytest.approx(2 * 2 * 2 * 50**2 * (16 + 32))  # two heads


# ---- the file

FIELDS = """
[host]
micro_batch = 0.002
parameter = 1e-5
"""


def described(text: str, folder: Path, hides: str = "[]") -> Description:
    file = folder / "mine.toml"
    own = (FOLDER / "a100-80g.toml").read_text(encoding="utf-8")
    own = own.replace("hides = []", f"hides = {hides}")
    own = own.replace("[products]", "[products]\n" + text)
    file.write_text(own + FIELDS, encoding="utf-8")
    return read_description(file)


def test_a_file_has_the_fields_of_software(tmp_path: Path) -> None:
    text = "tile = 128\nat_once = 108"
    sheet = described(text, tmp_path, '["zero1", "zero3"]').machine("float32").sheet
    assert sheet is not None
    assert (sheet.tile, sheet.at_once, sheet.of_micro_batch, sheet.of_parameter) == (
        *(128, 108),
        *(0.002, 1e-5),
    )
    assert sheet.hides == ("zero1", "zero3")


@pytest.mark.parametrize(
    ("text", "hides", "message"),
    [
        ("tile = 0", "[]", "products.tile is 0: give a whole number above 0"),
        ("tile = 12.5", "[]", "products.tile is 12.5: give a whole number above 0"),
        ("at_once = true", "[]", "products.at_once is True: give a whole number above 0"),
        ("", '["zero2"]', r"hides is \['zero2'\]: give a list of some of tp, dp, zero1, zero3"),
        ("tiles = 4", "[]", "products.tiles is no field"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(
    text: str, hides: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        described(text, tmp_path, hides)
    assert not re.search("\n", str(error.value))


def test_the_machines_of_the_package_say_nothing_of_software() -> None:
    for sheet in nnmpi.machines().values():
        assert (sheet.products_tile, sheet.products_at_once) == (1, 1)
        assert (sheet.host_micro_batch, sheet.host_parameter) == (0.0, 0.0)
        assert not {"zero1", "zero3"} & {*sheet.hides}
