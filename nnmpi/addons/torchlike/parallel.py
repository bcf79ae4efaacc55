"""PyTorch's `nn.parallel`: DistributedDataParallel, which is loaded when it is used."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from nnmpi import addons as _addons
from nnmpi.autograd import replacements as _replacements

__path__ = [_replacements.ABSENT]

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if (where := _addons.names_of("nnmpi.nn.parallel").get(name)) is None:
            raise _replacements.missing(
                _replacements.no_name("nnmpi.nn.parallel", name, "nn.parallel")
            )
        return _addons.loaded(where)
