"""PyTorch's `utils`: `utils.data` with data sets and loaders, and `utils.checkpoint`."""

from typing import TYPE_CHECKING, NoReturn

from nnmpi.autograd import replacements
from nnmpi.utils import checkpoint as checkpoint
from nnmpi.utils import data as data

if not TYPE_CHECKING:  # type checkers still report names that do not exist

    def __getattr__(name: str) -> NoReturn:
        raise replacements.missing(replacements.no_name("nnmpi.utils", name, "utils"))
