"""Attention, encoders of transformers, gates."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.transformer",
        *(f"nnmpi.nn.layers.{name}" for name in ("attention", "gates", "sequences")),
        *(f"nnmpi.nn.layers.{name}" for name in ("multihead", "transformer")),
        *("nnmpi.nn.dot_product_attention", "nnmpi.autograd.ops.attention"),
        "nnmpi.autograd.ops.gates",
        *("nnmpi.arrays.kernels.attention", "nnmpi.arrays.kernels.scores"),
        "nnmpi.parallel.tensor.transformer",
    ),
    rows={
        "options": {"transformer": "nnmpi.addons.transformer.options:PART"},
        "recomputed": {"selective": "nnmpi.nn.layers.attention:SelfAttention"},
        "layer_rules": {
            "nnmpi.nn.layers.attention:SelfAttention": (
                "nnmpi.parallel.tensor.transformer:ATTENTION_RULE"
            ),
            "nnmpi.nn.layers.sequences:PositionalEmbedding": (
                "nnmpi.parallel.tensor.transformer:EMBEDDING_RULE"
            ),
            "nnmpi.nn.layers.gates:SwiGLU": "nnmpi.parallel.tensor.transformer:GATES_RULE",
        },
        "names": {
            **places({"nn.dot_product_attention": "scaled_dot_product_attention"}),
            **places(
                {"nn.dot_product_attention": "scaled_dot_product_attention"}, "nn.functional."
            ),
            **places(
                {
                    "nn.layers.attention": "SelfAttention",
                    "nn.layers.gates": "SwiGLU",
                    "nn.layers.multihead": "MultiheadAttention",
                    "nn.layers.sequences": "PositionalEmbedding RotaryPositionalEmbeddings",
                    "nn.layers.transformer": "TransformerEncoder TransformerEncoderLayer",
                },
                "nn.",
            ),
        },
    },
)
