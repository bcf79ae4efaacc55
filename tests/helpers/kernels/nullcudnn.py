"""cuDNN on the null device: graphs are checked as by `fakecudnn`, and noted, not computed."""

import ctypes
import sys
from math import prod
from typing import Any

from emulator import machine
from helpers.kernels.fakecudnn import Fake, Graph

ITEM_BYTES = {"FLOAT": 4, "HALF": 2, "BFLOAT16": 2}
PRODUCTS = {"sdpa": 2, "sdpa_backward": 5}
"""The products of attention, each of all queries with all keys."""


class NullGraph(Graph):
    def execute(self, pack: list[int], workspace: int, *, handle: Any, **named: Any) -> None:
        details = f"{self.nbytes()}\t{self.operations()}\t{self.numbers()}"
        stream = ctypes.c_void_p(handle.stream)
        machine.library().emulator_issue(self.kind.encode(), details.encode(), stream)

    def nbytes(self) -> int:
        """All that it reads and writes."""
        return sum(prod(t.dim) * ITEM_BYTES[str(t.data_type)] for t in self.tensors)

    def operations(self) -> int:
        """Multiplications and additions; of causal attention those of half the scores."""
        first, second, third = self.tensors[:3]
        if self.kind not in PRODUCTS:
            return 2 * prod(third.dim) * prod(second.dim[1:])
        scores = prod(first.dim[:3]) * second.dim[2]
        causal = 2 if self.compute.keywords["causal"] else 1
        return PRODUCTS[self.kind] * 2 * scores * first.dim[3] // causal

    def numbers(self) -> str:
        """The numbers that are multiplied, as emulator/work.py names them."""
        if str(self.tensors[0].data_type) != "FLOAT":
            return "16 bits"
        return "float32" if "tensor core" in self.without else "tf32"


class NullCudnn(Fake):
    def pygraph(self, **types: Any) -> NullGraph:
        return NullGraph(self, **types)


def install() -> None:
    """Puts it in the place of cuDNN for the rest of this process."""
    sys.modules["cudnn"] = NullCudnn()  # type: ignore[assignment]
