"""Arrays of CuPy on GPUs: kernels, late outcomes of steps, and captured passes.

The kernels are in CUDA C or call cuBLAS; convolution and attention call cuDNN.

A kernel has the name and arguments of a NumPy kernel (`native/table.py` lists them), and is
called in its place for arrays on a GPU. It returns NotImplemented, before it writes anything, for
arrays that it does not support: arrays of libraries without CUDA, of other dtypes (CUDA C takes
float32 and 16 bits, products take 16 bits), with other strides, or with more than 2**31 elements.

Rules:

- A kernel computes in float32, with NumPy's operations in their order and without contraction to
  FMAs, and rounds once. So its bits are NumPy's, except for exp, logarithms and sums. No sum uses
  atomic additions: each run gives the same bits. Values below 1.2e-38 become 0, as CuPy compiles.
- NumPy kernels without a CUDA version run on float32 copies of 16-bit arrays; products do not.
- Engines of cuDNN that are not deterministic are excluded, and those that compute in TF32 unless
  `--tf32` allows it. No engine is looked for that computes the gradient of a model's input.
- Convolutions stay channels-last in float32 too. NCHW would need no workspace, where NHWC needs up
  to 133 MB, but each layer would copy its images and gradients twice.
- Sums over rows are sums, not products: TF32 would round the factors of a product.
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.cuda",),
    uses=("compile",),
    rows={
        "options": {"cuda": "nnmpi.addons.cuda.options:ADDED"},
        "device_kernels": {"cuda": "nnmpi.addons.cuda.table:KERNELS"},
        "device_parts": {"cuda": "nnmpi.addons.cuda.device:PARTS"},
        "step_graphs": {"cuda": "nnmpi.addons.cuda.step_graphs:captured"},
    },
    files=(
        *("scripts/gpu_minutes", "benchmarks/gpu_minutes.py", "benchmarks/lib/gpu"),
        *("tests/benchmarks/test_gpu_minutes.py", "tests/helpers/gpu_sections.py"),
    ),
)
