"""What is shown of a layout: layers of alike blocks once, and the ranks of stages."""

from helpers.planning import planning

from nnmpi import Config
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.layout_lines import blocks, merge_blocks
from nnmpi.addons.planning.layout_svg import as_svg


def test_layers_of_alike_blocks_are_one_row_with_their_numbers() -> None:
    rows = [("wte", "rows")]
    for block in range(4):
        rows += [(f"h.{block}.fc", "row" if block == 2 else "column"), (f"h.{block}.norm", "copy")]
    names = [(name, row[1]) for name, row in merge_blocks(rows)]
    assert names == [
        ("wte", "rows"),
        ("h.0-1,3.fc", "column"),
        ("h.0-3.norm", "copy"),
        ("h.2.fc", "row"),
    ]


def test_layers_that_are_not_in_blocks_keep_their_rows() -> None:
    rows = [("0", "Conv2d"), ("3", "Conv2d"), ("0.1.fc", "Linear"), ("0.2.fc", "Linear")]
    assert [name for name, _ in merge_blocks(rows)] == ["0", "3", "0.1.fc", "0.2.fc"]


def test_a_stage_is_drawn_on_the_rank_where_its_schedule_places_it() -> None:
    config = Config(model="mlp:64-24-24-24-10", data="synthetic:64:10:400", batch_size=32)
    arranger = planning(config, 2).arranger
    in_v = arranger.arranged(Candidate(pp=2, schedule="zb-v", micro_batches=4))
    assert [ranks for ranks, _ in blocks(in_v)] == ["rank 0", "rank 1", "rank 1", "rank 0"]
    assert "stage 3: rank 0" in as_svg({"in a v": in_v})
