"""What every communicator has to keep, whatever carries its messages: functions of a Comm.

Each runs on all ranks at once. `test_comm.py` runs them on threads, `test_comm_mpi.py` over MPI.
"""

from collections.abc import Callable

import laws_agree
import laws_background
import laws_memory
import laws_sums
import laws_works

from nnmpi.comm import Comm

LAWS: list[Callable[[Comm], None]] = [
    laws_sums.all_reduce_sums,
    laws_sums.all_reduce_has_the_bits_of_its_plan,
    laws_sums.all_reduce_gives_all_ranks_the_same_bits,
    laws_sums.half_precision_does_not_overflow_on_the_way,
    laws_sums.other_collectives,
    laws_sums.moving_changes_no_bits,
    laws_sums.messages_and_bytes,
    laws_sums.messages_and_bytes_by_peer,
    laws_sums.shared_memory_sends_nothing,
    laws_works.works_complete_in_any_order,
    laws_works.polling_completes,
    laws_works.polling_one_pushes_all,
    laws_works.polling_never_waits,
    laws_works.two_communicators_at_once,
    laws_works.some_ranks_have_more_under_way_than_others,
    laws_works.anything_in_any_order,
    laws_works.split_in_groups,
    laws_sums.buffers_in_shared_memory,
    laws_sums.arrays_in_any_layout,
    laws_sums.long_messages_are_cut,
    laws_sums.a_plan_of_ones_own,
    laws_works.barriers_hold,
    laws_memory.parts_of_shared_memory,
    laws_memory.parts_of_shared_memory_under_way_together,
    laws_memory.ranks_of_a_node_share_a_part_out,
    laws_memory.memory_of_a_node,
    laws_agree.ranks_agree_on_an_error,
    laws_agree.a_long_error_is_cut_between_characters,
    laws_background.a_helper_completes_works,
    laws_background.a_helper_gets_in_nobodys_way,
    laws_background.a_helper_may_leave_before_works_are_complete,
]
