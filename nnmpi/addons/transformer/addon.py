"""Attention, encoders and gates; context parallelism along cp."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=("nnmpi.addons.transformer",),
    of_step=("nnmpi.addons.transformer",),
    classes_of_step=("nnmpi.addons.transformer.ops",),
    rows={
        "options": {"transformer": "nnmpi.addons.transformer.options:ADDED"},
        "axis_set_ups": {"cp": "nnmpi.addons.transformer.context.set_up:SET_UP"},
        "recomputed": {"selective": "nnmpi.addons.transformer.attention:SelfAttention"},
        "layer_rules": {
            "nnmpi.addons.transformer.attention:SelfAttention": (
                "nnmpi.addons.transformer.rules:ATTENTION_RULE"
            ),
            "nnmpi.addons.transformer.sequences:PositionalEmbedding": (
                "nnmpi.addons.transformer.rules:EMBEDDING_RULE"
            ),
            "nnmpi.addons.transformer.gates:SwiGLU": "nnmpi.addons.transformer.rules:GATES_RULE",
        },
        "names": {
            **places({"addons.transformer.dot_product_attention": "scaled_dot_product_attention"}),
            **places(
                {"addons.transformer.dot_product_attention": "scaled_dot_product_attention"},
                "nn.functional.",
            ),
            **places(
                {
                    "addons.transformer.attention": "SelfAttention",
                    "addons.transformer.encoder": "TransformerEncoder TransformerEncoderLayer",
                    "addons.transformer.gates": "SwiGLU",
                    "addons.transformer.multihead": "MultiheadAttention",
                    "addons.transformer.sequences": "PositionalEmbedding"
                    " RotaryPositionalEmbeddings",
                },
                "nn.",
            ),
        },
        "modules": {
            "nn.layers.attention": "nnmpi.addons.transformer.attention",
            "nn.layers.gates": "nnmpi.addons.transformer.gates",
            "nn.layers.multihead": "nnmpi.addons.transformer.multihead",
            "nn.layers.sequences": "nnmpi.addons.transformer.sequences",
            "nn.layers.transformer": "nnmpi.addons.transformer.encoder",
        },
        "op_types": dict.fromkeys(
            (
                "nnmpi.addons.transformer.ops.attention:attention",
                "nnmpi.addons.transformer.ops.attention:self_attention",
                "nnmpi.addons.transformer.context.ring:ring_attention",
            ),
            "nnmpi.addons.transformer.ops.attention:in_16_bits",
        ),
    },
)
