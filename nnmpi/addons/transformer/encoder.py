"""Transformer blocks, under PyTorch's names."""

import copy
from collections.abc import Callable
from typing import Any

from nnmpi.addons.transformer.multihead import MultiheadAttention
from nnmpi.autograd import Tensor, as_tensor
from nnmpi.autograd.functional import gelu
from nnmpi.autograd.method_functions import relu, swapaxes
from nnmpi.nn.containers import ModuleList
from nnmpi.nn.layers.basic import Dropout, Linear, check_sizes
from nnmpi.nn.layers.norm import LayerNorm
from nnmpi.nn.module import Module

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"relu": relu, "gelu": gelu}


class TransformerEncoderLayer(Module):
    """A transformer block for x (T, N, d_model): y = norm1(x + attention(x)), and the result
    norm2(y + mlp(y)). With `norm_first` the norms are applied to the inputs of attention and MLP
    instead. With `batch_first` x is (N, T, d_model), the order in which a Trainer gives samples."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise ValueError(
                f"TransformerEncoderLayer: activation {activation!r} must be one of "
                f"{', '.join(ACTIVATIONS)}: give one of these or a function of a tensor"
            )
        check_sizes("TransformerEncoderLayer", 1, dim_feedforward=dim_feedforward)
        self.batch_first, self.norm_first = bool(batch_first), bool(norm_first)
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=True)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in "12")
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = activation  # a name is looked up later, so that layers can be pickled

    def forward(
        self,
        src: Tensor,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Computes the output for `src`, with the masks of MultiheadAttention: `src_mask` is (T, T)
        or (N H, T, T), and `src_key_padding_mask` is (N, T)."""
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        x = as_tensor(src)
        x = x if self.batch_first else swapaxes(x, 0, 1)  # dropout is keyed by the first axis
        if self.norm_first:
            x = x + self._attention(self.norm1(x), is_causal, masks)
            x = x + self._mlp(self.norm2(x))
        else:
            x = self.norm1(x + self._attention(x, is_causal, masks))
            x = self.norm2(x + self._mlp(x))
        return x if self.batch_first else swapaxes(x, 0, 1)

    def _attention(self, x: Tensor, is_causal: bool, masks: dict[str, Any]) -> Tensor:
        y, _ = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)
        dropped: Tensor = self.dropout1(y)
        return dropped

    def _mlp(self, x: Tensor) -> Tensor:
        given = self.activation
        activation = ACTIVATIONS[given] if isinstance(given, str) else given
        y: Tensor = self.dropout2(self.linear2(self.dropout(activation(self.linear1(x)))))
        return y


class TransformerEncoder(Module):
    """Copies of a layer, applied one after the other, and then `norm` if it is given.

    Layers draw their weights when these are first used. If that has not happened to `encoder_layer`
    yet, each copy draws other weights; PyTorch's copies start with equal weights.
    """

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        check_sizes("TransformerEncoder", 1, num_layers=num_layers)
        self.layers = ModuleList(_copy(encoder_layer) for _ in range(num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Computes the output for `src`, with the masks of MultiheadAttention: `mask` is (T, T) or
        (N H, T, T), and `src_key_padding_mask` is (N, T)."""
        x = as_tensor(src)
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, bool(is_causal))
        return x if self.norm is None else self.norm(x)


def _copy(layer: TransformerEncoderLayer) -> TransformerEncoderLayer:
    """Returns a copy of a layer. Layers draw their weights when these are first used: a copy of a
    layer without weights draws its own, which depend on its path in the model."""
    memo = {id(p): p.lazy_copy() for p in layer.parameters() if not p.is_drawn}
    return copy.deepcopy(layer, memo)
