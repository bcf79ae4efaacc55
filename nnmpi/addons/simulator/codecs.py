"""CODECS: what simulations and plans ask of an add-on that codes gradients before it sends them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnmpi.addons import Table


class Codecs(Protocol):
    """A module about codecs; `spec` is the value of their option, such as topk:0.01."""

    def sent(
        self, spec: str, shapes: Sequence[tuple[int, int]], itemsize: int, ranks: int, /
    ) -> tuple[str, Any]:
        """Returns the name of a codec, and what a rank sends of gradients; None: it is unknown."""

    def codec_call(self, spec: str, parameters: Sequence[Any], /) -> tuple[Callable[[], None], int]:
        """Returns a function that codes gradients of parameters, and the bytes that it touches."""


CODECS: Table[Codecs] = Table("codecs")
"""By an option: the module about its codecs."""
