"""Optimizers on flat buffers, learning-rate schedules and gradient clipping."""

from nnmpi.optim.clip import clip_grad_norm
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.rules import OPTIMIZERS, SGD, Adam, AdamW, RMSprop
from nnmpi.optim.schedule import constant, cosine, step_decay, warm_up

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm",
    "constant",
    "cosine",
    "step_decay",
    "warm_up",
]
