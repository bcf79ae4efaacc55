"""Attention: each position of a sequence takes a weighted mean of what others offer."""

from nnmpi import backend, keyed
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import attention
from nnmpi.backend import Array
from nnmpi.kernels.attention import Block, Keep
from nnmpi.kernels.rows import dropout_mask_loop
from nnmpi.nn.layers.basic import ALL, checked_probability
from nnmpi.nn.layers.sizes import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.passes import Pass, current_pass


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
        self.dropout = checked_probability("SelfAttention: dropout", dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if x.ndim != 3 or x.shape[2] % (3 * self.num_heads):
            raise ValueError(
                f"SelfAttention {self.path}: input of shape {x.shape}; it takes (N, T, "
                f"{self.num_heads} heads x 3 x size): the queries, keys and values of each head"
            )
        N, T, width = x.shape
        D = width // (3 * self.num_heads)
        keep = self._keep(x, D) if self.training and self.dropout else None
        parts, options = x.reshape(N, T, self.num_heads, 3, D), {"scale": D**-0.5, "keep": keep}
        y = apply(attention.self_attention, parts, causal=self.is_causal, **options)
        return y.reshape(N, T, width // 3)

    def _keep(self, x: Tensor, D: int) -> Keep:
        """Dropout of a block, from the seed, the step, the path, the sample, and where in all
        scores of the sample it is."""
        now, T = current_pass.get() or Pass(self.root.passes), x.shape[1]
        on, least, factor = backend.of(x.data), int(self.dropout * 2**32), 1 / (1 - self.dropout)
        key = keyed.key(self.root.seed, "dropout", now.step, self.path)
        samples = on.xp.arange(x.shape[0]) if now.samples is None else on.asarray(now.samples)
        first = self.part.start // D

        def keep(block: Block) -> Array:
            h, i, j = (on.xp.arange(s.start, s.stop) for s in block[1:])
            index = (((first + h)[:, None, None] * T + i[:, None]) * T + j).reshape(-1)
            rows = samples[block.samples]
            mask = on.xp.empty((len(rows), len(index)), x.dtype)
            dropout_mask_loop(index, rows, *key, least, factor, mask)
            return mask.reshape(len(rows), len(h), 1, len(i), len(j))

        return keep

    def extra_repr(self) -> str:
        dropout = f", dropout={self.dropout}" * bool(self.dropout)
        return f"{self.num_heads}, is_causal={self.is_causal}{dropout}"
