"""Calls whose result has a type that autocast decides, with that type.

call(t, x, h)    t: nnmpi or torch; x(*shape): a float32 tensor; h(*shape): a 16-bit one
"""

from collections.abc import Callable
from typing import Any

Call = Callable[[Any, Any, Any], Any]


def functions(t: Any) -> Any:
    """The module `nn.functional` of a library."""
    return t.nn.functional


def labels(t: Any) -> Any:
    """Labels of four samples of three classes."""
    return t.tensor([0, 2, 1, 2])


PRODUCTS: dict[str, Call] = {
    "a @ b": lambda t, x, h: x(3, 4) @ x(4, 2),
    "matrix @ vector": lambda t, x, h: x(3, 4) @ x(4),
    "vector @ vector": lambda t, x, h: x(4) @ x(4),
    "of two types": lambda t, x, h: h(3, 4) @ x(4, 2),
    "bmm": lambda t, x, h: t.bmm(x(2, 3, 4), x(2, 4, 3)),
    "einsum": lambda t, x, h: t.einsum("bij,bkj->bik", x(2, 3, 4), x(2, 5, 4)),
    "einsum of rows": lambda t, x, h: t.einsum("ij,ij->i", x(3, 4), x(3, 4)),
    "einsum of three": lambda t, x, h: t.einsum("ij,jk,kl", x(3, 4), x(4, 2), x(2, 3)),
    "linear": lambda t, x, h: functions(t).linear(x(3, 4), x(2, 4), x(2)),
    "conv1d": lambda t, x, h: functions(t).conv1d(x(1, 2, 6), x(3, 2, 3), x(3)),
    "conv2d": lambda t, x, h: functions(t).conv2d(x(1, 2, 5, 6), x(3, 2, 3, 3), x(3)),
    "prelu": lambda t, x, h: functions(t).prelu(h(2, 3), x(1)),
    "attention": lambda t, x, h: functions(t).scaled_dot_product_attention(
        x(1, 2, 4, 8), x(1, 2, 5, 8), x(1, 2, 5, 8)
    ),
    "attention with a mask": lambda t, x, h: functions(t).scaled_dot_product_attention(
        x(1, 2, 4, 8), x(1, 2, 5, 8), x(1, 2, 5, 8), attn_mask=x(4, 5)
    ),
}
"""Calls that give 16 bits, with the same numbers in both libraries."""

LAYERS: dict[str, Call] = {
    "ConvTranspose2d": lambda t, x, h: t.nn.ConvTranspose2d(2, 3, 3)(x(1, 2, 4, 4)),
    "Conv2d, reflected": lambda t, x, h: t.nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")(
        x(1, 2, 4, 4)
    ),
    "MultiheadAttention": lambda t, x, h: t.nn.MultiheadAttention(8, 2)(
        x(3, 1, 8), x(3, 1, 8), x(3, 1, 8)
    ),
    "MultiheadAttention alone": lambda t, x, h: t.nn.MultiheadAttention(8, 2)(
        x(3, 1, 8), x(3, 1, 8), x(3, 1, 8), need_weights=False
    ),
    "LSTM": lambda t, x, h: t.nn.LSTM(4, 5, 2, bidirectional=True)(x(3, 2, 4)),
    "LSTM from states": lambda t, x, h: t.nn.LSTM(4, 5)(x(3, 2, 4), (x(1, 2, 5), x(1, 2, 5))),
    "GRU of 16 bits": lambda t, x, h: t.nn.GRU(4, 5)(h(3, 2, 4)),
    "RNN": lambda t, x, h: t.nn.RNN(4, 5)(x(3, 2, 4)),
    "RNNCell": lambda t, x, h: t.nn.RNNCell(4, 5)(x(2, 4)),
}
"""Layers with weights of their own that give 16 bits."""

WIDE_LAYERS: dict[str, Call] = {
    "GRU": lambda t, x, h: t.nn.GRU(4, 5)(x(3, 2, 4)),
    "GRUCell": lambda t, x, h: t.nn.GRUCell(4, 5)(x(2, 4)),
    "GRUCell with a state": lambda t, x, h: t.nn.GRUCell(4, 5)(h(2, 4), x(2, 5)),
    "LSTMCell": lambda t, x, h: t.nn.LSTMCell(4, 5)(x(2, 4)),
    "TransformerEncoderLayer": lambda t, x, h: t.nn.TransformerEncoderLayer(8, 2)(x(3, 1, 8)),
    "Embedding": lambda t, x, h: t.nn.Embedding(3, 4)(labels(t)),
}
"""Layers with weights of their own that give float32."""

WIDE: dict[str, Call] = {
    "cross_entropy": lambda t, x, h: functions(t).cross_entropy(h(4, 3), labels(t)),
    "cross_entropy with weights": lambda t, x, h: functions(t).cross_entropy(
        h(4, 3), labels(t), weight=t.tensor([0.3, 1.0, 0.7])
    ),
    "cross_entropy of probabilities": lambda t, x, h: functions(t).cross_entropy(
        h(4, 3), h(4, 3).softmax(1)
    ),
    "cross_entropy of each": lambda t, x, h: functions(t).cross_entropy(
        h(4, 3), labels(t), reduction="none"
    ),
    "nll_loss": lambda t, x, h: functions(t).nll_loss(h(4, 3), labels(t)),
    "mse_loss": lambda t, x, h: functions(t).mse_loss(h(4, 3), h(4, 3).flip(0)),
    "l1_loss": lambda t, x, h: functions(t).l1_loss(h(4, 3), h(4, 3).flip(0)),
    "smooth_l1_loss": lambda t, x, h: functions(t).smooth_l1_loss(h(4, 3), h(4, 3).flip(0)),
    "huber_loss": lambda t, x, h: functions(t).huber_loss(h(4, 3), h(4, 3).flip(0)),
    "binary_cross_entropy": lambda t, x, h: functions(t).binary_cross_entropy(
        h(4, 3).sigmoid(), h(4, 3).flip(0).sigmoid()
    ),
    "binary_cross_entropy_with_logits": lambda t, x, h: functions(
        t
    ).binary_cross_entropy_with_logits(h(4, 3), h(4, 3).flip(0).sigmoid()),
    "kl_div": lambda t, x, h: functions(t).kl_div(
        h(4, 3), h(4, 3).flip(0).sigmoid(), reduction="sum"
    ),
    "CosineEmbeddingLoss": lambda t, x, h: t.nn.CosineEmbeddingLoss()(
        h(4, 3), h(4, 3).flip(0), t.ones(4)
    ),
    "MarginRankingLoss": lambda t, x, h: t.nn.MarginRankingLoss()(h(4), h(4).flip(0), t.ones(4)),
    "triplet_margin_loss": lambda t, x, h: functions(t).triplet_margin_loss(
        h(4, 3), h(4, 3).flip(0), h(4, 3).flip(1)
    ),
    "prod": lambda t, x, h: h(4, 3).prod(1),
    "quantile": lambda t, x, h: t.quantile(h(4, 3), 0.3),
    "cdist": lambda t, x, h: t.cdist(h(4, 3), h(4, 3).flip(1)),
    "pad, reflected": lambda t, x, h: functions(t).pad(h(1, 2, 4, 4), (1, 1, 2, 0), "reflect"),
    "pad, replicated": lambda t, x, h: functions(t).pad(h(1, 2, 4), (1, 1), "replicate"),
    "cat": lambda t, x, h: t.cat([h(3), x(3)]),
    "stack": lambda t, x, h: t.stack([h(3), x(3)]),
    "a + b": lambda t, x, h: h(3) + x(3),
    "where": lambda t, x, h: t.where(x(3) > 0, h(3), x(3)),
    "pairwise_distance of two types": lambda t, x, h: functions(t).pairwise_distance(
        h(4, 3), x(4, 3).flip(0)
    ),
    "einsum of one": lambda t, x, h: t.einsum("ij->i", x(3, 4)),
    "einsum without a sum": lambda t, x, h: t.einsum("i,j->ij", x(3), x(4)),
    "einsum of sums": lambda t, x, h: t.einsum("ij,k->k", x(3, 4), x(4)),
}
"""Calls that give float32, with the same numbers in both libraries."""

UNCHANGED: dict[str, Call] = {
    "softmax": lambda t, x, h: h(4, 3).softmax(1),
    "log_softmax": lambda t, x, h: h(4, 3).log_softmax(1),
    "layer_norm": lambda t, x, h: functions(t).layer_norm(h(4, 3), (3,), x(3), x(3)),
    "rms_norm": lambda t, x, h: functions(t).rms_norm(h(4, 3), (3,), x(3)),
    "group_norm": lambda t, x, h: functions(t).group_norm(h(4, 2, 3), 2, x(2), x(2)),
    "BatchNorm2d": lambda t, x, h: t.nn.BatchNorm2d(2)(h(3, 2, 4, 4)),
    "BatchNorm2d in evaluation": lambda t, x, h: t.nn.BatchNorm2d(2).eval()(h(3, 2, 4, 4)),
    "InstanceNorm2d": lambda t, x, h: t.nn.InstanceNorm2d(2, affine=True)(h(3, 2, 4, 4)),
    "max_pool2d": lambda t, x, h: functions(t).max_pool2d(h(1, 2, 4, 4), 2),
    "adaptive_avg_pool2d": lambda t, x, h: functions(t).adaptive_avg_pool2d(h(1, 2, 4, 4), 2),
    "interpolate": lambda t, x, h: functions(t).interpolate(
        h(1, 2, 4, 4), scale_factor=2, mode="bilinear"
    ),
    "pad": lambda t, x, h: functions(t).pad(h(1, 2, 4, 4), (1, 1, 2, 0)),
    "pad, circular": lambda t, x, h: functions(t).pad(h(1, 2, 4, 4), (1, 1, 2, 0), "circular"),
    "gelu": lambda t, x, h: functions(t).gelu(h(4)),
    "relu": lambda t, x, h: functions(t).relu(h(4)),
    "exp": lambda t, x, h: h(4).exp(),
    "sum": lambda t, x, h: h(4, 3).sum(),
    "mean": lambda t, x, h: h(4, 3).mean(0),
    "cumsum": lambda t, x, h: h(4, 3).cumsum(0),
    "std": lambda t, x, h: h(4, 3).std(),
    "var": lambda t, x, h: h(4, 3).var(1),
    "norm": lambda t, x, h: h(4, 3).norm(),
    "cosine_similarity": lambda t, x, h: functions(t).cosine_similarity(h(4, 3), h(4, 3).flip(0)),
    "logsumexp": lambda t, x, h: h(4, 3).logsumexp(0),
}
"""Calls that give 16 bits, as their arguments have."""

NARROW = PRODUCTS | LAYERS | UNCHANGED
"""All calls that give 16 bits."""

FLOAT32 = WIDE | WIDE_LAYERS
"""All calls that give float32."""

SAME_NUMBERS = PRODUCTS | WIDE | UNCHANGED
"""Calls whose results can be compared."""


def first(result: Any) -> Any:
    """The first tensor of a result."""
    return first(result[0]) if isinstance(result, tuple) else result
