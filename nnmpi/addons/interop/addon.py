"""nnmpi for programs of other libraries: estimators for scikit-learn, and a backend of
torch.distributed."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.interop", "nnmpi.sklearn", "nnmpi.torch"), uses=("torchlike",)
)
