"""Data parallelism by hand: mpirun -n 2 python examples/own_loop.py

What the Trainer does, without it: each rank computes gradients of its part of a batch, an
all-reduce adds them up, and all ranks make the same update.
"""

import numpy as np

import nnmpi
from nnmpi import data, nn, optim
from nnmpi.comm import world

BATCH = 64  # samples of all ranks

comm = world()
train, test = data.load("digits", seed=0)[1:3]
x, x_test = (split.x.astype("float32") / 16 for split in (train, test))

with nnmpi.seeded(0):  # the same weights on every rank
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
    )
loss_of = nn.CrossEntropyLoss(reduction="sum")
opt = optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(3):
    order = np.random.default_rng(epoch).permutation(len(x))
    total = np.zeros(1)
    for start in range(0, len(x), BATCH):
        batch = order[start : start + BATCH]
        mine = batch[comm.rank :: comm.size]
        loss = loss_of(model(nnmpi.tensor(x[mine])), train.y[mine]) * (1 / len(batch))
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            comm.all_reduce(p.grad)
        opt.step()
        total += loss.item() * len(batch)
    comm.all_reduce(total)
    if comm.rank == 0:
        accuracy = (model(nnmpi.tensor(x_test)).numpy().argmax(1) == test.y).mean()
        print(f"epoch {epoch + 1}   loss {total[0] / len(x):.4f}   accuracy {accuracy:.2%}")
