"""Data sets of images: MNIST, Fashion-MNIST, CIFAR-10."""

from nnmpi.addons import AddOn

_MODULES = {
    f"data.{name}": f"nnmpi.addons.images.{name}" for name in ("mnist", "cifar", "download")
}

ADD_ON = AddOn(
    modules=("nnmpi.addons.images",),
    rows={
        "names": _MODULES,
        "modules": _MODULES,
        "datasets": {
            "mnist": "nnmpi.addons.images.mnist:MNIST",
            "fashion-mnist": "nnmpi.addons.images.mnist:FASHION_MNIST",
            "cifar10": "nnmpi.addons.images.cifar:CIFAR10",
        },
    },
)
