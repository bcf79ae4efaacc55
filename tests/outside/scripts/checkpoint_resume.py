"""Training is interrupted, and resumed from a checkpoint of model, optimizer and scheduler."""

import os
import random
import shutil

import numpy as np
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True


class Model(nn.Module):
    def __init__(self, d_in=6, hidden=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(d_in, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ELU(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
        )
        self.head = nn.Linear(hidden, 1)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.head(self.body(x)).squeeze(-1)


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def build(device):
    model = Model().to(device)
    optimizer = optim.AdamW(
        [
            {"params": model.body.parameters()},
            {"params": model.head.parameters(), "lr": 5e-3, "weight_decay": 0.0},
        ],
        lr=1e-2,
        weight_decay=1e-2,
    )
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2, eta_min=1e-4)
    return model, optimizer, scheduler


def run(epochs, loader, val, resume=None, device="cpu"):
    model, optimizer, scheduler = build(device)
    start_epoch, best = 0, float("inf")
    if resume is not None and os.path.isfile(resume):
        print("=> loading checkpoint '{}'".format(resume))
        checkpoint = torch.load(resume, map_location=device, weights_only=False)
        start_epoch = checkpoint["epoch"]
        best = checkpoint["best"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(
            "=> loaded (epoch {}), rates {}".format(
                checkpoint["epoch"], [f"{g['lr']:.6f}" for g in optimizer.param_groups]
            )
        )
    criterion = nn.SmoothL1Loss(beta=0.5)
    for epoch in range(start_epoch, epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            total += loss.item()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            val_loss = criterion(model(val[0]), val[1]).item()
        is_best, best = val_loss < best, min(val_loss, best)
        print(
            f"epoch {epoch}: train {total / len(loader):.6f} val {val_loss:.6f} "
            f"lr {[f'{lr:.5f}' for lr in scheduler.get_last_lr()]} steps {model.steps.item()}"
        )
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best": best,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            is_best,
        )
    return model


set_seed(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(96, 6)
y = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2]
loader = DataLoader(TensorDataset(x[:72], y[:72]), batch_size=12, shuffle=False)
val = x[72:], y[72:]
run(3, loader, val, device=device)
model = run(6, loader, val, resume="checkpoint.pth.tar", device=device)
final = torch.load("checkpoint.pth.tar", map_location="cpu", weights_only=False)
state = final["optimizer"]["state"]
print("step counts:", {int(s["step"]) for s in state.values()}, "of", len(state), "parameters")
print("groups:", [len(g["params"]) for g in final["optimizer"]["param_groups"]])
best_model = Model()
best_model.load_state_dict(torch.load("model_best.pth.tar")["state_dict"])
best_model.eval()
with torch.no_grad():
    print("best %.6f" % nn.functional.smooth_l1_loss(best_model(val[0]), val[1], beta=0.5).item())
