"""Files of nested states, open files, and files of PyTorch."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.io.nested", "nnmpi.io.streams", "nnmpi.io.torch_files"),
    rows={
        "state_files": {
            "nested": "nnmpi.io.nested",
            "streams": "nnmpi.io.streams",
            "pickle": "nnmpi.io.torch_files.reading:read",
            "torch": "nnmpi.io.torch_files.writing:write",
            "tensors": "nnmpi.io.torch_files.tensors:tensors",
        }
    },
)
