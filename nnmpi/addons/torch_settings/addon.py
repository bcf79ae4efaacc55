"""Modules of PyTorch that set how a program computes: amp, cuda, backends, jit."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=(
        *("nnmpi.accelerator", "nnmpi.amp", "nnmpi.backends", "nnmpi.cuda", "nnmpi.jit"),
        *("nnmpi.autograd.autocasting", "nnmpi.memory_formats"),
    ),
    rows={
        "names": {
            "accelerator": "nnmpi.accelerator",
            "amp": "nnmpi.amp",
            "cuda": "nnmpi.cuda",
            "cuda.amp": "nnmpi.cuda.amp",
            "backends": "nnmpi.backends",
            "jit": "nnmpi.jit",
            **places(
                {
                    "autograd.autocasting": "autocast get_autocast_dtype is_autocast_enabled",
                }
            ),
            **places({"memory_formats": "channels_last contiguous_format preserve_format"}),
        }
    },
)
