"""Layers for programs of one's own, which no option of the command and no arrangement uses.

summa.py             a product whose matrices are blocks on a grid of ranks
halo.py, spatial.py  images cut by rows over ranks, for samples too large for one rank
"""
