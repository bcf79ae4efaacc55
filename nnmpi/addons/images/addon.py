"""Data sets of images: MNIST, Fashion-MNIST, CIFAR-10."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=tuple(f"nnmpi.data.{name}" for name in ("mnist", "cifar", "download")),
    rows={
        "names": {f"data.{name}": f"nnmpi.data.{name}" for name in ("mnist", "cifar", "download")},
        "datasets": {
            "mnist": "nnmpi.data.mnist:MNIST",
            "fashion-mnist": "nnmpi.data.mnist:FASHION_MNIST",
            "cifar10": "nnmpi.data.cifar:CIFAR10",
        },
    },
)
