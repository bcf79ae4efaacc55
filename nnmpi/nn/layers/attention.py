"""Attention: each position of a sequence takes a weighted mean of what others offer."""

from nnmpi import backend
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import attention
from nnmpi.backend import Array
from nnmpi.kernels.attention import Block, Keep
from nnmpi.nn.decoding import past
from nnmpi.nn.layers.basic import ALL, check_probability, dropout_key, dropout_mask
from nnmpi.nn.layers.sizes import check_sizes
from nnmpi.nn.module import Module


class SelfAttention(Module):
    """softmax(q k^T / sqrt(D)) v of x (N, T, H 3 D), the query, key and value of each head of a
    position side by side; the output is (N, T, H D).

    `is_causal`: a position looks at itself and at those before it. In training, weights become 0
    with probability `dropout`, and the others are divided by 1 - dropout.

    Sharding sets `num_heads`, and `part`: the channels of the output that are here.
    """

    def __init__(self, num_heads: int, is_causal: bool = False, dropout: float = 0.0) -> None:
        check_sizes("SelfAttention", 1, num_heads=num_heads)
        self.num_heads, self.is_causal, self.part = num_heads, bool(is_causal), ALL
        check_probability("SelfAttention", "dropout", dropout)
        self.dropout = float(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if x.ndim != 3 or x.shape[2] % (3 * self.num_heads):
            raise ValueError(
                f"SelfAttention {self.path}: input of shape {x.shape}; it takes (N, T, "
                f"{self.num_heads} heads x 3 x size): the queries, keys and values of each head"
            )
        N, T, width = x.shape
        D = width // (3 * self.num_heads)
        keep = self._keep(x.data, D) if self.training and self.dropout else None
        if (before := past.get()) is not None:
            y = before.attend(self, x.data.reshape(N, T, self.num_heads, 3, D), self.is_causal)
            return Tensor(y.reshape(N, T, width // 3))
        parts, options = x.reshape(N, T, self.num_heads, 3, D), {"scale": D**-0.5, "keep": keep}
        y = apply(attention.self_attention, parts, causal=self.is_causal, **options)
        return y.reshape(N, T, width // 3)

    def _keep(self, x: Array, D: int) -> Keep:
        """Dropout of a block, by where in all scores of a sample it is."""
        xp, T, first = backend.xp_of(x), x.shape[1], self.part.start // D
        key, samples = dropout_key(self, self.path, x)

        def keep(block: Block) -> Array:
            h, i, j = (xp.arange(s.start, s.stop) for s in block[1:])
            index = (((first + h)[:, None, None] * T + i[:, None]) * T + j).reshape(-1)
            mask = dropout_mask(key, samples[block.samples], index, self.dropout, x)
            return mask.reshape(len(mask), len(h), 1, len(i), len(j))

        return keep

    def extra_repr(self) -> str:
        dropout = f", dropout={self.dropout}" * bool(self.dropout)
        return f"{self.num_heads}, is_causal={self.is_causal}{dropout}"
