"""The backend "nnmpi" of torch.distributed: to import this module is to register it."""

from nnmpi.addons.interop.torch_backend import comm as comm
from nnmpi.addons.interop.torch_backend import use as use
