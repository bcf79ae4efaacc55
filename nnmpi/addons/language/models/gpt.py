"""GPT: a transformer that predicts the next token, with GPT-2's names."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nnmpi.addons.transformer.attention import SelfAttention
from nnmpi.addons.transformer.sequences import PositionalEmbedding
from nnmpi.autograd import Tensor
from nnmpi.nn import initial
from nnmpi.nn.layers.activations import GELU
from nnmpi.nn.layers.basic import ChannelsFirst, Dropout, Embedding, Linear
from nnmpi.nn.layers.norm import LayerNorm
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Init, Parameter
from nnmpi.nn.sequential import Sequential

DEVIATION = 0.02
"""The standard deviation of initial weights."""

WIDER = 4
"""How many times as wide as a block its MLP is within, unless a width is given."""


class GPTSizes(NamedTuple):
    """The sizes of a GPT; `intermediate` is the width within an MLP, or 0 for four times the
    width."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int
    intermediate: int = 0

    @property
    def model(self) -> str:
        """The name of a model of these sizes, as the option `--model` takes it."""
        is_own = self.intermediate not in (0, WIDER * self.width)
        within = f":{self.intermediate}" if is_own else ""
        return f"gpt:{self.layers}x{self.heads}x{self.width}{within}"

    def checked(self) -> Self:
        """Returns the sizes with defaults for 0; raises ValueError if impossible."""
        intermediate = self.intermediate or WIDER * self.width
        check_blocks("gpt", *self[:3], intermediate)
        return self._replace(intermediate=intermediate)


class GPT(Module):
    """A transformer from tokens (N, T) to scores (N, vocabulary, T) of the next token.

    h          the blocks; the head shares the weight of the token embedding
    published  the JSON files of the folder that the model was loaded from, by name; saved with it
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        width: int,
        vocabulary: int,
        positions: int,
        dropout: float = 0.0,
        published: Mapping[str, Any] | None = None,
        intermediate: int = 0,
    ) -> None:
        sizes = GPTSizes(layers, heads, width, vocabulary, positions, intermediate).checked()
        self.sizes = sizes
        self.heads, self.published = heads, published or {}
        self.wte = Embedding(vocabulary, width)
        self.wpe = PositionalEmbedding(positions, width)
        self.drop = Dropout(dropout)
        last = DEVIATION / (2 * layers) ** 0.5  # each block adds two terms to its input
        self.h = Sequential(*(Block(sizes, last, dropout) for _ in range(layers)))
        self.ln_f = LayerNorm(width)
        self.head = Linear(width, vocabulary, bias=False)
        self.wte.weight, self.wpe.weight = (
            Parameter.lazy(m.weight.shape, initial.normal(DEVIATION)) for m in (self.wte, self.wpe)
        )
        self.head.weight = self.wte.weight
        self.scores = ChannelsFirst()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wpe(self.wte(tokens)))
        scores: Tensor = self.scores(self.head(self.ln_f(self.h(x))))
        return scores


class Block(Module):
    """A transformer block: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, sizes: GPTSizes, last: float, dropout: float) -> None:
        width = sizes.width
        self.ln_1, self.attn = LayerNorm(width), Attention(sizes.heads, width, last, dropout)
        self.ln_2, self.mlp = LayerNorm(width), MLP(width, sizes.intermediate, last, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        y: Tensor = x + self.mlp(self.ln_2(x))
        return y


class Attention(Module):
    """Causal self-attention between two Linear layers."""

    def __init__(self, heads: int, width: int, last: float, dropout: float) -> None:
        self.c_attn = _linear(width, 3 * width, DEVIATION)
        self.attend = SelfAttention(heads, is_causal=True, dropout=dropout)
        self.c_proj = _linear(width, width, last)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.c_proj(self.attend(self.c_attn(x))))
        return y


class MLP(Module):
    """Two Linear layers with GELU between them."""

    def __init__(self, width: int, intermediate: int, last: float, dropout: float) -> None:
        self.c_fc, self.gelu = _linear(width, intermediate, DEVIATION), GELU("tanh")
        self.c_proj, self.drop = _linear(intermediate, width, last), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.c_proj(self.gelu(self.c_fc(x))))
        return y


def check_blocks(model: str, layers: int, heads: int, width: int, intermediate: int) -> None:
    """Raises ValueError unless a transformer named `model` can have these numbers and widths."""
    if min(layers, heads, width, intermediate) < 1 or width % heads:
        within = f", {intermediate} within an MLP" * (intermediate < 1 <= width)
        raise ValueError(
            f"a {model} of {layers} layers, {heads} heads and width {width}{within}: all must be "
            "at least 1, and the width a multiple of the heads"
        )


def _linear(width: int, out: int, deviation: float) -> Linear:
    """Returns a Linear layer with normal weights of this deviation, and bias 0."""
    layer, weight = Linear(width, out), initial.normal(deviation)
    zeros: Init = initial.constant(0.0)
    layer.weight = Parameter.lazy((out, width), weight)
    layer.bias = Parameter.lazy((out,), zeros)
    return layer
