"""Compression: sums of arrays over ranks, with messages that are smaller than the arrays.

exchange.py   a computation with several messages in turn, as one Transfer
blocks.py     sums with all messages in bfloat16 or int8
store.py      the memory of parameters with --compress, and functions that its `addon.py` names
codecs.py     topk, sign, PowerSGD and int8 for gradients, with their residuals
"""
