"""The bits of a model as one hash, by which replicas and runs are compared."""

import hashlib

import numpy as np

from nnmpi import backend
from nnmpi.nn.module import Module


def parameters_sha256(model: Module) -> str:
    """One hash of all parameters, whole and in the order of the state dictionary."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(np.ascontiguousarray(backend.to_host(p.data)).tobytes())
    return digest.hexdigest()
