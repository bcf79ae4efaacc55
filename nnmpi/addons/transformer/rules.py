"""The rules for dividing the layers of transformers among ranks along tp: attention is divided by
its heads, gated units by channels, position embeddings by positions."""

from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.rules import LayerRule, Signature
from nnmpi.parallel.tensor.ways import POSITIONS, Options, Way


def _head(settings: Options, sample: tuple[int, ...]) -> int:
    """Returns the input channels of a key/value head: its queries, key and value."""
    return int(sample[-1] // settings["num_kv_heads"])


def _of_queries(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds:
    """Returns where ranks along tp cut the output of an attention layer, which has only as many
    channels as the queries: rank r has bounds[r] to bounds[r + 1] - 1. `bounds` cut the input."""
    G = settings["groups"]
    return tuple(b // (G + 2) * G for b in bounds)


_SIZES = ("num_heads", "num_kv_heads", "part")
_HEADS = Way(-1, -1, sizes=_SIZES, block=_head, behind=_of_queries)
_GATES = Way(-1, -1, block=lambda *_: 2, behind=lambda *given: tuple(b // 2 for b in given[2]))
ATTENTION_RULE = LayerRule((_HEADS,), Signature("nth", "nth", {}, {"t": "keys"}))
EMBEDDING_RULE = LayerRule(
    (Way(POSITIONS, POSITIONS, {"weight": 0}),), Signature("ntc", "ntc", {"weight": "tc"})
)
GATES_RULE = LayerRule((_GATES,), Signature("*h", "*h"))
