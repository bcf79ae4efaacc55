"""The loads that a thread has under way in the loops that add up: a GPU's memory is fast only if
much is asked of it at a time."""

import re

import pytest
from helpers.kernels.machine_code import kernels, loads_under_way, loops
from helpers.kernels.nvrtc import cubin_of, needs_nvrtc

from nnmpi.addons.cuda import launch

pytestmark = needs_nvrtc

LOADS: dict[str, dict[str, tuple[int, ...]]] = {
    "norms": {
        "layer_norm": (8, 8),
        "layer_norm_gradient": (24, 16),
        "rms_norm": (8,),
        "rms_norm_gradient": (24, 16),
        "column_sums": (8, 8),
        "norm_sums": (16, 16),
        "batch_norm_sums": (24, 16, 16, 16),
        "row_norm_sums": (32, 24, 16),
        "moments": (16, 8, 8),
    },
    "softmax": {
        "narrow_losses": (8, 8, 8, 8),
        "wide_losses": (8,),
        "sum_losses": (8,),
        "softmax": (8, 8),
        "probabilities": (8, 8),
        "softmax_gradient": (16, 8),
    },
    "optimizers": {"squares": (8,)},
    "elementwise": {"add_sorted": (8, 8)},
}
"""The fewest loads under way in each loop of a sum, by source and kernel; the compiler makes two
loops of one with a condition that stays. These numbers may rise, but not fall."""


def test_each_reduction_is_here() -> None:
    for name, table in LOADS.items():
        marked = re.findall(r"^REDUCTION (\w+)\(", launch.source(name), re.MULTILINE)
        assert set(marked) == table.keys()
    texts = [path.read_text(encoding="utf-8") for path in launch.FOLDER.glob("*.cu")]
    assert sum(text.count("\nREDUCTION ") for text in texts) == sum(map(len, LOADS.values()))


@pytest.mark.parametrize("T", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LOADS)
def test_loads_under_way_in_reductions(name: str, T: str) -> None:
    code = dict(kernels(cubin_of(name, "sm_90", T)))
    for kernel, wanted in LOADS[name].items():
        found = sorted(map(loads_under_way, loops(code[kernel])), reverse=True)
        assert len(found) >= len(wanted), (kernel, found)
        assert all(a >= b for a, b in zip(found, wanted, strict=False)), (kernel, found)
