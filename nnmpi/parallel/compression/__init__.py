"""Compression: sums of arrays over ranks, with messages that are smaller than the arrays.

exchange.py   a computation with several messages in turn, as one Transfer
blocks.py     sums with all messages in bfloat16 or int8
store.py      the memory of parameters with --compress, and functions that its `addon.py` names
on_paper.py   what compressed sums exchange, for planning
codecs.py     topk, sign, PowerSGD and int8 for gradients, with their residuals
"""
