"""`p.data`: the values of a parameter as a tensor that autograd does not see."""

from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import UnnoticedStorage


class DataStorage(UnnoticedStorage):
    """The storage of `p.data`: the parameter hears of writes, autograd does not."""

    __slots__ = ("parameter",)

    def __init__(self, parameter: Any) -> None:
        super().__init__(parameter.storage)
        self.parameter = parameter

    def mark_written(self) -> None:
        self.noticed.mark_unnoticed()
        self.parameter.values_written()


class ParameterData(Tensor):
    """The values `p.data` of a parameter p without gradient tracking; writes change the parameter.

    It looks up the memory at every use, since an optimizer may move it. After `p.data = value` the
    attribute `parameter` is a tensor with the old values.
    """

    __slots__ = ("parameter",)
    parameter: Any

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter
        self.node = self.viewed = self.grad_array = None
        self._requires_grad = False
        self.storage = DataStorage(parameter)

    @property
    def _array(self) -> Array:
        """The values of the parameter, as an array in the memory of its Store."""
        return self.parameter._array

    @property
    def array(self) -> Array:
        """The values; a copy if the Store reuses the memory for other parameters."""
        self.renew()
        return self.parameter.array

    @array.setter
    def array(self, value: Array) -> None:
        self.parameter.array = value

    def before_write(self) -> Tensor:
        return Tensor(self.array.copy(order="K"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.array,)

    def share(self, view: Tensor) -> None:
        """Lets `view` write to the parameter; a copy if the store reuses the memory."""
        self.parameter.share(view)
        if view.storage is self.parameter.storage:
            view.storage = self.storage


ParameterData.__name__ = Tensor.__name__  # messages to users say "Tensor"
