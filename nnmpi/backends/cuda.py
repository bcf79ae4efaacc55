"""PyTorch's settings of CUDA, which change nothing."""

from nnmpi.backends.settings import Settings

matmul = Settings("nnmpi.backends.cuda.matmul")
vars(matmul).update(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)
