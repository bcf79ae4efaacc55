"""What is shown of a layout: layers of alike blocks once."""

from nnmpi.parallel.arrangement.drawing import merge_blocks


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
