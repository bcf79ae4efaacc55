"""The functions of torch.nn.functional and torch.nn.init."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.nn.functional", "nnmpi.nn.layer_functions", "nnmpi.nn.init"),
    rows={
        "names": {"nn.functional": "nnmpi.nn.functional", "nn.init": "nnmpi.nn.init"},
    },
)
