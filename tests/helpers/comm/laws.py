"""What holds for every communicator, on any transport: functions of a Comm.

Each runs on all ranks at once. `test_comm.py` runs them on threads, `test_comm_mpi.py` over MPI.
"""

from collections.abc import Callable

from helpers.comm import (
    laws_agree,
    laws_background,
    laws_halves,
    laws_memory,
    laws_refusals,
    laws_sums,
    laws_works,
)

from nnmpi.comm import Comm

LAWS: list[Callable[[Comm], None]] = [
    laws_sums.all_reduce_sums,
    laws_sums.short_integers_wrap,
    laws_sums.all_reduce_has_the_bits_of_its_algorithm,
    laws_sums.all_reduce_gives_all_ranks_the_same_bits,
    laws_sums.partial_sums_of_half_precision_do_not_overflow,
    laws_sums.other_collectives,
    laws_sums.moving_changes_no_bits,
    laws_sums.messages_and_bytes,
    laws_sums.messages_and_bytes_by_peer,
    laws_sums.shared_memory_sends_nothing,
    laws_works.works_complete_in_any_order,
    laws_works.polling_completes,
    laws_works.polling_one_work_moves_all,
    laws_works.polling_never_waits,
    laws_works.start_matches_all_reduce,
    laws_works.two_communicators_at_once,
    laws_works.ranks_have_different_works_under_way,
    laws_works.random_calls_in_any_order,
    laws_works.split_in_groups,
    laws_sums.buffers_in_shared_memory,
    laws_sums.arrays_in_any_layout,
    laws_sums.unaligned_arrays,
    laws_sums.long_messages_are_cut,
    laws_sums.an_algorithm_of_the_user,
    laws_works.barriers_hold,
    laws_memory.parts_of_shared_memory,
    laws_memory.several_sums_of_shared_memory_under_way,
    laws_memory.ranks_of_a_node_divide_a_sum,
    laws_memory.memory_of_a_node,
    laws_agree.ranks_agree_on_an_error,
    laws_agree.a_long_error_is_cut_between_characters,
    *laws_halves.LAWS,
    *laws_refusals.LAWS,
    laws_background.a_progress_thread_completes_works,
    laws_background.a_progress_thread_changes_no_results,
    laws_background.a_progress_thread_may_end_before_works_are_complete,
]
