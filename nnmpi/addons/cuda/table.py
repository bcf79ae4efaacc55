"""The kernels for arrays of CuPy."""

from nnmpi.addons.cuda import conv, kernels, products, sdpa
from nnmpi.arrays.native.table import DeviceKernels

KERNELS = DeviceKernels(
    {
        **kernels.KERNELS,
        "products_loop": products.products_loop,
        "attention": sdpa.attention,
        "attention_gradients": sdpa.gradients,
    },
    conv.Cudnn.of,
)
