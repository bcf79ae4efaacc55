"""Distributions, as in torch.distributions."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.distributions",),
    uses=("tensor_functions", "nn_functions", "more_layers"),
    rows={"names": {"distributions": "nnmpi.distributions"}},
)
