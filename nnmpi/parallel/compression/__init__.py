"""Compression: arrays that are summed over ranks, sent in fewer bytes than they have.

exchange.py   an exchange in several phases, as one Transfer
blocks.py     sums of which both halves are sent as bfloat16 or int8
store.py      the store of --compress, and what its rows in `addons.py` name
codecs.py     topk, sign, PowerSGD and int8 for gradients, with what they leave out
"""
