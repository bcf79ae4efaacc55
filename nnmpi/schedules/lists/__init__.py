"""Lists of the operations of each rank in a step, and the proof that these cannot deadlock.

    schedule, Chain ─► units_of ─► with_messages ─► with_recomputed ─► with_note ─► list ─► proof

The lists here have passes and messages. `parallel/step_list/` adds sums of gradients and gathers of
parameters, for the ranks of an arrangement. Nothing here runs a list or knows arrays.
"""
