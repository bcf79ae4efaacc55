"""Schedules as values: what a rank does in a step, and in which order."""

from nnmpi.schedules.op import Kind as Kind
from nnmpi.schedules.op import Op as Op
from nnmpi.schedules.op import forward_only as forward_only
from nnmpi.schedules.op import one_stage as one_stage
from nnmpi.schedules.op import slice_by_slice as slice_by_slice
from nnmpi.schedules.reduction_tree import Action as Action
from nnmpi.schedules.reduction_tree import Move as Move
from nnmpi.schedules.reduction_tree import moves as moves
