"""Layers for programs of one's own, which no option of the command and no arrangement uses.

halo.py, spatial.py  images cut by rows over ranks, for samples too large for one rank
"""
