"""Llama: a transformer of RMSNorm, rotary positions, SwiGLU and grouped queries."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nnmpi.addons.language.models.gpt import DEVIATION, check_blocks
from nnmpi.addons.transformer.attention import SelfAttention
from nnmpi.addons.transformer.gates import SwiGLU
from nnmpi.autograd import Tensor
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import ChannelsFirst, Embedding, Linear
from nnmpi.nn.layers.norm import RMSNorm
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import Sequential

MOST_ROWS = 2**31 - 1
"""The most rows or columns of a tensor."""

RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("heads", "positions", "kv_heads", "intermediate"), (1, MOST_ROWS)),
    "rope_theta": (1.0, 1e12),
    "norm_eps": (1e-20, 1.0),
}
"""The least and the most of sizes and settings; the weights and other checks limit the others."""


class LlamaSizes(NamedTuple):
    """The sizes and settings of a Llama; numbers that are 0 are chosen by `checked`.

    positions      the largest number of tokens in a text
    kv_heads       the number of key and value heads; 0: as many as query heads
    intermediate   the width within an MLP; 0: 8/3 of the width, rounded up to a multiple of 256,
                   or of 32 for a width below 1,024
    rope_theta     the base of rotary positions, whose pairs are channels i and i + D / 2 of a head
    norm_eps       the number that RMSNorm adds to the mean of squares
    is_tied        True if the output layer shares the weight of the token embedding
    """

    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int
    kv_heads: int = 0
    intermediate: int = 0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    is_tied: bool = False

    @property
    def model(self) -> str:
        """The name of a model of these sizes, as the option `--model` takes it."""
        is_own = self.intermediate not in (0, self._usual_intermediate)
        is_shared = is_own or self.kv_heads not in (0, self.heads)
        shared = f":{self.kv_heads or self.heads}" if is_shared else ""
        within = f":{self.intermediate}" if is_own else ""
        return f"llama:{self.layers}x{self.heads}x{self.width}{shared}{within}"

    @property
    def _usual_intermediate(self) -> int:
        unit = 256 if self.width >= 1024 else 32
        return -(-(8 * self.width // 3) // unit) * unit

    def checked(self) -> Self:
        """Returns the sizes with defaults for 0; raises ValueError if impossible."""
        intermediate = self.intermediate or self._usual_intermediate
        check_blocks("llama", *self[:3], intermediate)
        kv_heads, channels = self.kv_heads or self.heads, self.width // self.heads
        if kv_heads < 1 or self.heads % kv_heads:
            raise ValueError(
                f"{self.model}: {kv_heads} key/value heads do not divide {self.heads} heads"
            )
        if channels % 2:
            raise ValueError(
                f"{self.model}: a head has {channels} channels, but rotary positions turn pairs; "
                f"give a width that is a multiple of {2 * self.heads}"
            )
        sizes = self._replace(kv_heads=kv_heads, intermediate=intermediate)
        for name, (least, most) in RANGES.items():
            if not least <= (value := getattr(sizes, name)) <= most:
                raise ValueError(f"{self.model}: {name} {value} must be from {least:g} to {most:g}")
        return sizes


class Llama(Module):
    """A transformer from tokens (N, T) to scores (N, vocabulary, T) of the next token.

    published  the JSON files of the folder that the model was loaded from, by name; saved with it
    """

    def __init__(self, sizes: LlamaSizes, published: Mapping[str, Any] | None = None) -> None:
        self.sizes, self.published = sizes.checked(), published or {}
        self.embed_tokens = Embedding(sizes.vocabulary, sizes.width)
        self.layers = Sequential(*(LlamaBlock(self.sizes) for _ in range(sizes.layers)))
        self.norm = RMSNorm(sizes.width, sizes.norm_eps)
        self.lm_head = Linear(sizes.width, sizes.vocabulary, bias=False)
        for layer in self.modules():
            if isinstance(layer, Embedding | Linear):
                layer.weight = Parameter.lazy(layer.weight.shape, initial.normal(DEVIATION))
        if sizes.is_tied:
            self.lm_head.weight = self.embed_tokens.weight
        self.scores = ChannelsFirst()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.layers(self.embed_tokens(tokens)))
        scores: Tensor = self.scores(self.lm_head(x))
        return scores


class LlamaBlock(Module):
    """A Llama's block: x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, sizes: LlamaSizes) -> None:
        W, eps, K = sizes.width, sizes.norm_eps, sizes.kv_heads
        D = W // sizes.heads
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(W, eps), RMSNorm(W, eps)
        self.qkv_proj = Linear(W, W + 2 * K * D, bias=False)
        self.attend = SelfAttention(sizes.heads, True, 0.0, sizes.rope_theta, K, interleaved=False)
        self.o_proj = Linear(W, W, bias=False)
        self.gate_up_proj = Linear(W, 2 * sizes.intermediate, bias=False)
        self.swiglu = SwiGLU()
        self.down_proj = Linear(sizes.intermediate, W, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.o_proj(self.attend(self.qkv_proj(self.input_layernorm(x))))
        y = self.gate_up_proj(self.post_attention_layernorm(x))
        z: Tensor = x + self.down_proj(self.swiglu(y))
        return z
