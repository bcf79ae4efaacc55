"""Facts about a step that does not run, found by walking the list of operations of a rank
(`step_list`) and the list of calls of each of its passes (`step/recorded_pass.py`).

Here: exchanges, and bytes of passes. Not here: seconds, and memory between steps (`planning`).
"""
