"""Loss scaling in a step of mixed-precision training: the backward pass starts from the loss times
the loss scale, so that small 16-bit gradients do not become 0."""

from collections.abc import Sequence
from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor
from nnmpi.nn import CrossEntropyLoss
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.step.objective import Objective, widened
from nnmpi.parallel.step.ports import LossSink


class ScaledLossSink(LossSink):
    """A LossSink in float32 that starts from the loss times the loss scale."""

    def __init__(self, objective: Objective, scaler: Scaler) -> None:
        super().__init__(objective)
        self._scaler = scaler

    def loss_of(self, y: Tensor, labels: Any) -> Tensor:
        if type(self.criterion) is CrossEntropyLoss and types_of(y.dtype).is_mixed:
            return self.criterion.wide_loss(y, labels)
        return super().loss_of(widened(y), labels)

    def seeds(self, micro: int, outputs: Sequence[Array], scale: float = 1.0) -> Sequence[Array]:
        return super().seeds(micro, outputs, self._scaler.current.scale)

    def evaluate(self, micro: int, y: Tensor) -> None:
        super().evaluate(micro, widened(y))
