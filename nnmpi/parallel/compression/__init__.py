"""Compression: sums of arrays over ranks, with messages that are smaller than the arrays.

exchange.py   an exchange in several phases, as one Transfer
blocks.py     sums with all messages in bfloat16 or int8
store.py      the store of --compress, and the functions that its rows in `addons.py` name
codecs.py     topk, sign, PowerSGD and int8 for gradients, with their residuals
"""
