"""Recommends films by factors of users and films, with biases."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
n_users, n_items, rank = 30, 25, 3
U, V = rng.normal(size=(n_users, rank)), rng.normal(size=(n_items, rank))
full = np.clip(np.round(3 + U @ V.T * 0.7), 1, 5)
seen = rng.random((n_users, n_items)) < 0.5
users, items = np.nonzero(seen)
ratings = full[seen].astype(np.float32)
order = rng.permutation(len(ratings))
users, items, ratings = users[order], items[order], ratings[order]
cut = int(0.85 * len(ratings))


class MatrixFactorization(nn.Module):
    def __init__(self, n_users, n_items, n_factors=8, dropout=0.02):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, n_factors)
        self.item_factors = nn.Embedding(n_items, n_factors, max_norm=None)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_bias = nn.Embedding(n_items, 1)
        self.global_bias = nn.Parameter(torch.tensor(0.0))
        self.dropout = nn.Dropout(dropout)
        for emb in [self.user_factors, self.item_factors]:
            nn.init.xavier_uniform_(emb.weight)
        nn.init.constant_(self.user_bias.weight, 0.0)
        nn.init.constant_(self.item_bias.weight, 0.0)

    def forward(self, user, item):
        u = self.dropout(self.user_factors(user))
        v = self.dropout(self.item_factors(item))
        dot = torch.einsum("bf,bf->b", u, v)
        bias = self.user_bias(user).squeeze() + self.item_bias(item).squeeze()
        return torch.sigmoid(dot + bias + self.global_bias) * 4.5 + 0.75


def to_loader(lo, hi, batch_size, shuffle):
    ds = TensorDataset(
        torch.LongTensor(users[lo:hi]), torch.LongTensor(items[lo:hi]), torch.tensor(ratings[lo:hi])
    )
    return DataLoader(ds, batch_size=batch_size, shuffle=shuffle)


def rmse(model, loader):
    model.eval()
    se = 0.0
    with torch.no_grad():
        for u, i, r in loader:
            se += nn.functional.mse_loss(model(u, i), r, reduction="sum").item()
    return (se / len(loader.dataset)) ** 0.5


torch.manual_seed(0)
train_loader = to_loader(0, cut, 32, True)
test_loader = to_loader(cut, None, 64, False)
model = MatrixFactorization(n_users, n_items)
loss_func = nn.MSELoss()
decay, no_decay = [], []
for name, p in model.named_parameters():
    (no_decay if "bias" in name else decay).append(p)
optimizer = optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "lr": 0.05, "weight_decay": 0}],
    lr=0.02,
)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6 * len(train_loader))
history = {"train": [], "test": []}
for epoch in range(6):
    model.train()
    total = 0.0
    for u, i, r in train_loader:
        prediction = model(u, i)
        loss = loss_func(prediction, r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(r)
    history["train"].append((total / cut) ** 0.5)
    history["test"].append(rmse(model, test_loader))
    lrs = ", ".join(f"{g['lr']:.5f}" for g in optimizer.param_groups)
    print(f"epoch {epoch}: {history['train'][-1]:.4f} {history['test'][-1]:.4f} rates {lrs}")

with torch.no_grad():
    user = torch.full((n_items,), 3, dtype=torch.long)
    scores = model(user, torch.arange(n_items))
    scores[torch.from_numpy(items[users == 3])] = -1.0
    best = torch.topk(scores, k=3)
print("recommended:", best.indices.tolist(), [f"{s:.2f}" for s in best.values])
torch.save({"model": model.state_dict(), "history": history}, "factors.pth")
print(sorted(torch.load("factors.pth", weights_only=False)["history"]))
