"""Classifies token sequences of different lengths with a transformer encoder."""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

PAD, VOCAB, CLASSES = 0, 20, 3


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 50):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        """x: sequence, batch, features"""
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class Classifier(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, nclass, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(ntoken, d_model, padding_idx=PAD)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, nlayers, norm=nn.LayerNorm(d_model))
        self.head = nn.Linear(d_model, nclass)
        self.init_weights()

    def init_weights(self) -> None:
        initrange = 0.1
        self.head.bias.data.zero_()
        self.head.weight.data.uniform_(-initrange, initrange)

    def forward(self, src: Tensor) -> Tensor:
        padding = src == PAD
        x = self.embedding(src.t()) * math.sqrt(self.d_model)
        x = self.pos_encoder(x)
        x = self.encoder(x, src_key_padding_mask=padding)
        keep = (~padding).t().unsqueeze(-1).to(x.dtype)
        pooled = (x * keep).sum(0) / keep.sum(0).clamp(min=1)
        return self.head(pooled)


class Sequences(Dataset):
    """A sequence's class is the group of its most frequent tokens."""

    def __init__(self, n):
        self.items = []
        for _ in range(n):
            label = torch.randint(0, CLASSES, (1,)).item()
            length = torch.randint(5, 13, (1,)).item()
            tokens = torch.randint(1, VOCAB, (length,))
            group = torch.randint(1 + 6 * label, 7 + 6 * label, (length,))
            tokens = torch.where(torch.rand(length) < 0.6, group, tokens)
            self.items.append((tokens, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(batch):
    tokens, labels = zip(*batch)
    tokens = pad_sequence(list(tokens), batch_first=True, padding_value=PAD)
    return tokens, torch.tensor(labels)


def evaluate(model, loader, device):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for src, label in loader:
            src, label = src.to(device), label.to(device)
            correct += model(src).argmax(dim=-1).eq(label).sum().item()
            total += label.size(0)
    return correct / total


def main():
    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Sequences(160), batch_size=16, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(Sequences(48), batch_size=48, collate_fn=collate)
    model = Classifier(VOCAB, 32, 4, 64, 2, CLASSES).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warmup = 8
    scheduler = LambdaLR(optimizer, lambda s: min((s + 1) / warmup, (warmup / (s + 1)) ** 0.5))
    for epoch in range(4):
        model.train()
        running = 0.0
        for src, label in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(src.to(device)), label.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            running += loss.item() * label.size(0)
        lr = scheduler.get_last_lr()[0]
        print(
            f"epoch {epoch}: loss {running / len(train_loader.dataset):.4f}, lr {lr:.2e}, "
            f"accuracy {evaluate(model, test_loader, device):.2%}"
        )


if __name__ == "__main__":
    main()
