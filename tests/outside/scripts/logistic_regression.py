"""Logistic regression of unbalanced classes, with a weight for the rare one."""

import numpy as np
import torch
from torch import nn
from torch.nn import BCEWithLogitsLoss, Linear
from torch.optim import SGD


def make_data(n, seed):
    rng = np.random.RandomState(seed)
    X = rng.randn(n, 6)
    w = np.array([1.5, -2.0, 0.0, 0.7, 0.0, 1.0])
    y = (X @ w + 0.5 * rng.randn(n) > 2.5).astype(np.float32)
    return X, y


X_train, y_train = make_data(300, 0)
X_test, y_test = make_data(100, 1)
mean, std = X_train.mean(0), X_train.std(0)
X_train = torch.tensor((X_train - mean) / std, dtype=torch.float32)
X_test = torch.tensor((X_test - mean) / std, dtype=torch.float32)
y_train = torch.as_tensor(y_train).view(-1, 1)
y_test = torch.as_tensor(y_test).view(-1, 1)

torch.manual_seed(0)
pos = y_train.sum()
pos_weight = (y_train.numel() - pos) / pos
print(f"positives: {int(pos)} of {len(y_train)}, weight {pos_weight.item():.3f}")


class LogisticRegression(nn.Module):
    def __init__(self, input_dim):
        super().__init__()
        self.linear = Linear(input_dim, 1)

    def forward(self, x):
        return self.linear(x)


def roc_auc(scores, labels):
    order = torch.argsort(scores)
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    n_pos = labels.sum()
    n_neg = len(labels) - n_pos
    return (ranks[labels.bool()].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)


def confusion(pred, target):
    index = 2 * target.long() + pred.long()
    return torch.bincount(index.flatten(), minlength=4).reshape(2, 2)


model = LogisticRegression(X_train.shape[1])
criterion = BCEWithLogitsLoss(pos_weight=pos_weight)
optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
l1_lambda = 1e-3
for epoch in range(30):
    model.train()
    for i in torch.randperm(len(X_train)).split(100):
        optimizer.zero_grad()
        logits = model(X_train[i])
        l1_norm = sum(p.abs().sum() for p in model.parameters())
        loss = criterion(logits, y_train[i]) + l1_lambda * l1_norm
        loss.backward()
        optimizer.step()
    scheduler.step()
    if (epoch + 1) % 10 == 0:
        model.eval()
        with torch.no_grad():
            test_loss = criterion(model(X_test), y_test)
            probs = torch.sigmoid(model(X_test))
            pred = (probs >= 0.5).float()
        acc = (pred == y_test).float().mean().item()
        auc = roc_auc(probs.squeeze(), y_test.squeeze())
        print(f"epoch {epoch + 1}: loss {test_loss:.4f}, accuracy {acc:.3f}, AUC {auc:.4f}")
matrix = confusion(pred, y_test)
tn, fp, fn, tp = matrix.flatten().tolist()
print(f"confusion {matrix.tolist()}, recall {tp / (tp + fn):.3f}, precision {tp / (tp + fp):.3f}")
weights = model.linear.weight.data.squeeze()
print("strongest feature", weights.abs().argmax().item(), [round(w, 3) for w in weights.tolist()])
