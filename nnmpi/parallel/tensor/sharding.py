"""What `parallelize` has done to a model: which layer is sharded how."""

from typing import NamedTuple

from nnmpi.parallel.tensor.sums import Bounds


class ShardedLayer(NamedTuple):
    """One layer with parameters or channels of its own, and what this rank has of it.

    how     "column", "row", "rows" (of an embedding), "channels", or "copy"
    bounds  the channels of each rank: outputs of a column, inputs of a row; empty for a copy
    """

    path: str
    kind: str
    how: str
    sizes: tuple[int, ...]  # the whole weight
    bounds: Bounds
    gathers: bool = False  # a column that gathers its output
    is_first: bool = False  # no layer before it is trained: its input needs no gradient

    @property
    def messages(self) -> str:
        """What ranks send for it."""
        if self.how in ("row", "rows"):
            return "all-reduce of the output"
        summed = self.how == "column" and not self.is_first
        sums, gathers = "all-reduce of the gradient of the input", "all-gather of the output"
        return ", ".join([sums] * summed + [gathers] * self.gathers)


class Sharding(NamedTuple):
    """The layers in order, and the bounds of the channels of the output; None if it is whole."""

    layers: tuple[ShardedLayer, ...]
    output: Bounds | None

    def cut_of(self, v: int) -> None:
        return None

    def columns(self, rank: int, here: int) -> int:
        """The scores of a sample on all ranks, if this rank has so many."""
        if self.output is None:
            return here
        return here * self.output[-1] // (self.output[rank + 1] - self.output[rank])


UNSHARDED = Sharding((), None)
