"""More layers and losses under PyTorch's names."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=(
        *(
            "nnmpi.nn.layers.padding",
            "nnmpi.nn.layers.distances",
            "nnmpi.nn.layers.more_activations",
        ),
        "nnmpi.nn.layers.embedding_bag",
        *("nnmpi.nn.utils.norms", "nnmpi.nn.utils.vectors"),
        "nnmpi.nn.more_losses",
        *("nnmpi.autograd.ops.element_losses", "nnmpi.autograd.ops.more_activations"),
    ),
    uses=("tensor_functions", "nn_functions"),
    rows={
        "names": {
            **{
                f"nn.{kind}Pad{axes}d": f"nnmpi.nn.layers.padding:{kind}Pad{axes}d"
                for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
                for axes in (1, 2)
            },
            **places(
                {
                    "nn.layers.distances": "CosineEmbeddingLoss CosineSimilarity"
                    " MarginRankingLoss PairwiseDistance TripletMarginLoss",
                    "nn.layers.embedding_bag": "EmbeddingBag",
                    "nn.layers.more_activations": "Hardsigmoid Hardswish Hardtanh LogSigmoid"
                    " Mish ReLU6 SELU Softsign",
                    "nn.layers.padding": "PixelShuffle PixelUnshuffle Unflatten",
                    "nn.more_losses": "BCELoss BCEWithLogitsLoss HuberLoss KLDivLoss SmoothL1Loss",
                },
                "nn.",
            ),
            **places(
                {
                    "nn.layers.distances": "cosine_similarity normalize pairwise_distance"
                    " triplet_margin_loss",
                    "nn.layers.more_activations": "hardsigmoid hardswish hardtanh logsigmoid"
                    " mish relu6 selu softsign",
                    "nn.more_losses": "binary_cross_entropy binary_cross_entropy_with_logits"
                    " huber_loss kl_div smooth_l1_loss",
                },
                "nn.functional.",
            ),
            **places(
                {
                    "nn.utils.norms": "remove_spectral_norm remove_weight_norm spectral_norm"
                    " weight_norm",
                    "nn.utils.vectors": "parameters_to_vector vector_to_parameters",
                },
                "nn.utils.",
            ),
        }
    },
)
