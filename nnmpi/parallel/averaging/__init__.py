"""Training that communicates less: replicas along dp make steps of their own, and are averaged.

local.py    local steps (local SGD, DiLoCo): every H steps, an outer optimizer
means.py    means over replicas: of flat values, and of buffers
"""

from nnmpi.parallel.averaging.local import local as local
from nnmpi.parallel.averaging.local import rank_step as rank_step
