"""parallelize(model, comm, x): the layers of a model become sharded ones, under their names."""

from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensor
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.tracing import trace
from nnmpi.parallel.tensor.rebuild import rebuild, refuse_parts
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import Sharding


def parallelize(model: Module, comm: Comm, x: Any, *, whole_output: bool = False) -> Sharding:
    """Divides the layers of a model among the ranks of a Comm so that they send the least.

    x are some samples, an array or a tensor, of which only the shape and the type count. With
    `whole_output` every rank gets all scores, as most losses need them.

    Every rank calls it on an equal model. Raises ValueError, and leaves the model as it was, if it
    cannot be divided.
    """
    refuse_parts(model)
    sample = as_tensor(x)
    drawn = (p.dtype for p in model.parameters() if p.is_drawn)
    dtype = next(drawn, np.dtype(np.float32))
    kind = dtype if sample.dtype.kind == "f" else sample.dtype

    def zeros(samples: int) -> tuple[tuple[Tensor], dict[str, Any]]:
        return (Tensor(np.zeros((samples, *sample.shape[1:]), kind)),), {}

    graph = trace(model, zeros, dtype)
    sharding = shard(graph, comm.size, whole_output)
    rebuild(model, graph, sharding, comm)
    return sharding
