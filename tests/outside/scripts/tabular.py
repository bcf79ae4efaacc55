"""A network for tables: embeddings of categories beside normalised numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler, random_split


class TabularDataset(Dataset):
    def __init__(self, n=400):
        self.n = n
        self.cats = torch.stack([torch.randint(0, c, (n,)) for c in (5, 3, 7)], dim=1)
        self.conts = torch.randn(n, 4) * torch.tensor([1.0, 5.0, 0.2, 10.0]) + 3
        score = self.conts[:, 0] + 0.3 * self.conts[:, 1] + (self.cats[:, 0] == 2) * 2.0
        score = score + torch.randn(n) * 0.5 - (self.cats[:, 2] > 4).float()
        self.y = (score > score.quantile(0.8)).float().unsqueeze(-1)

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        return {"cat": self.cats[idx], "cont": self.conts[idx]}, self.y[idx]


class FeedForwardNN(nn.Module):
    def __init__(
        self, emb_dims, no_of_cont, lin_layer_sizes, output_size, emb_dropout, lin_dropouts
    ):
        super().__init__()
        self.emb_layers = nn.ModuleList([nn.Embedding(x, y) for x, y in emb_dims])
        no_of_embs = sum(y for x, y in emb_dims)
        sizes = [no_of_embs + no_of_cont, *lin_layer_sizes]
        self.lin_layers = nn.ModuleList(
            [nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)]
        )
        for lin_layer in self.lin_layers:
            nn.init.kaiming_normal_(lin_layer.weight.data)
        self.output_layer = nn.Linear(lin_layer_sizes[-1], output_size)
        nn.init.kaiming_normal_(self.output_layer.weight.data)
        self.first_bn_layer = nn.BatchNorm1d(no_of_cont)
        self.bn_layers = nn.ModuleList([nn.BatchNorm1d(size) for size in lin_layer_sizes])
        self.emb_dropout_layer = nn.Dropout(emb_dropout)
        self.dropout_layers = nn.ModuleList([nn.Dropout(p) for p in lin_dropouts])

    def forward(self, cont_data, cat_data):
        x = [emb_layer(cat_data[:, i]) for i, emb_layer in enumerate(self.emb_layers)]
        x = self.emb_dropout_layer(torch.cat(x, 1))
        x = torch.cat([x, self.first_bn_layer(cont_data)], 1)
        for lin, dropout, bn in zip(self.lin_layers, self.dropout_layers, self.bn_layers):
            x = dropout(bn(torch.relu(lin(x))))
        return self.output_layer(x)


def evaluate(model, loader, device):
    model.eval()
    hits, total, positives = 0, 0, 0
    with torch.inference_mode():
        for x, y in loader:
            logits = model(x["cont"].to(device), x["cat"].to(device))
            pred = (logits.sigmoid() > 0.5).float()
            hits += torch.eq(pred, y.to(device)).sum().item()
            positives += int(pred.sum())
            total += y.numel()
    return hits / total, positives


torch.manual_seed(2024)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dataset = TabularDataset()
train_set, val_set = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(5))
assert isinstance(train_set, Subset)
labels = torch.stack([y for _, y in train_set]).view(-1).long()
class_count = torch.bincount(labels)
weights = (1.0 / class_count.float())[labels]
sampler = WeightedRandomSampler(weights, num_samples=len(weights), replacement=True)
train_loader = DataLoader(train_set, batch_size=32, sampler=sampler, drop_last=True)
val_loader = DataLoader(val_set, batch_size=64, shuffle=False)
model = FeedForwardNN([(5, 3), (3, 2), (7, 4)], 4, [32, 16], 1, 0.04, [0.05, 0.05]).to(device)
print(model.lin_layers[0], model.first_bn_layer.num_features)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
for epoch in range(5):
    model.train()
    epoch_loss = 0.0
    for x, y in train_loader:
        cat, cont, y = x["cat"].to(device), x["cont"].to(device), y.to(device)
        preds = model(cont, cat)
        loss = criterion(preds, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    accuracy, positives = evaluate(model, val_loader, device)
    scheduler.step(accuracy)
    lr = optimizer.param_groups[0]["lr"]
    print(
        f"epoch {epoch}: loss {epoch_loss / len(train_loader):.4f}, accuracy {accuracy:.3f}, "
        f"positives {positives}, lr {lr}"
    )
bn = model.first_bn_layer
print(f"running mean {bn.running_mean.mean():.4f}, batches {bn.num_batches_tracked.item()}")
