"""Schedules as values: what a rank does in a step, and in which order."""

from nnmpi.schedules.lowering import RECEIVES as RECEIVES
from nnmpi.schedules.lowering import boundary as boundary
from nnmpi.schedules.lowering import forward_programs as forward_programs
from nnmpi.schedules.lowering import lower as lower
from nnmpi.schedules.lowering import message as message
from nnmpi.schedules.lowering import programs as programs
from nnmpi.schedules.lowering import stream as stream
from nnmpi.schedules.op import MESSAGES as MESSAGES
from nnmpi.schedules.op import Kind as Kind
from nnmpi.schedules.op import Op as Op
from nnmpi.schedules.op import slice_by_slice as slice_by_slice
from nnmpi.schedules.pipeline import SCHEDULES as SCHEDULES
from nnmpi.schedules.pipeline import Schedule as Schedule
from nnmpi.schedules.proof import PipelineSize as PipelineSize
from nnmpi.schedules.proof import ScheduleError as ScheduleError
from nnmpi.schedules.proof import channel as channel
from nnmpi.schedules.proof import in_order as in_order
from nnmpi.schedules.proof import prove as prove
from nnmpi.schedules.reduction_tree import Action as Action
from nnmpi.schedules.reduction_tree import TreeMove as TreeMove
from nnmpi.schedules.reduction_tree import highest as highest
from nnmpi.schedules.reduction_tree import moves as moves
from nnmpi.schedules.reduction_tree import owners_of as owners_of
