"""Sentiment of padded reviews by a bidirectional LSTM over packed sequences."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

SEED = 1234
torch.manual_seed(SEED)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

good = "great lovely superb warm clever bright".split()
bad = "dull weak awful cold boring broken".split()
neutral = "the film plot actor scene was is very a and with".split()
vocab = {w: i + 1 for i, w in enumerate(good + bad + neutral)}
vocab["<pad>"] = 0


class ReviewDataset(Dataset):
    def __init__(self, size, generator):
        self.reviews, self.labels = [], []
        for _ in range(size):
            label = int(torch.randint(2, (), generator=generator))
            n = int(torch.randint(3, 15, (), generator=generator))
            words = []
            for _ in range(n):
                pool = (good if label else bad) if len(words) % 3 == 1 else neutral
                words.append(pool[int(torch.randint(len(pool), (), generator=generator))])
            self.reviews.append([vocab[w] for w in words])
            self.labels.append(label)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return torch.LongTensor(self.reviews[idx]), self.labels[idx]


def collate_fn(batch):
    batch.sort(key=lambda item: len(item[0]), reverse=True)
    reviews, labels = zip(*batch)
    lengths = torch.LongTensor([len(r) for r in reviews])
    return pad_sequence(reviews, batch_first=True), lengths, torch.FloatTensor(labels)


class SentimentRNN(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim, output_dim, pad_idx, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=pad_idx)
        self.rnn = nn.LSTM(
            embedding_dim, hidden_dim, num_layers=1, bidirectional=True, batch_first=True
        )
        self.attn = nn.Linear(hidden_dim * 2, 1)
        self.fc = nn.Linear(hidden_dim * 4, output_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text, text_lengths):
        embedded = self.dropout(self.embedding(text))
        packed = pack_padded_sequence(embedded, text_lengths.cpu(), batch_first=True)
        packed_output, (hidden, cell) = self.rnn(packed)
        output, output_lengths = pad_packed_sequence(packed_output, batch_first=True)
        mask = torch.arange(output.size(1), device=text.device)[None, :] >= output_lengths[:, None]
        scores = self.attn(output).squeeze(-1).masked_fill(mask, float("-inf"))
        context = (torch.softmax(scores, dim=1).unsqueeze(-1) * output).sum(dim=1)
        hidden = torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1)
        return self.fc(self.dropout(torch.cat((hidden, context), dim=1)))


def count_parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def binary_accuracy(preds, y):
    rounded_preds = torch.round(torch.sigmoid(preds))
    correct = (rounded_preds == y).float()
    return correct.sum() / len(correct)


def train(model, iterator, optimizer, criterion):
    epoch_loss, epoch_acc = 0, 0
    model.train()
    for text, lengths, labels in iterator:
        optimizer.zero_grad()
        predictions = model(text.to(device), lengths).squeeze(1)
        loss = criterion(predictions, labels.to(device))
        acc = binary_accuracy(predictions, labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        epoch_acc += acc.item()
    return epoch_loss / len(iterator), epoch_acc / len(iterator)


def evaluate(model, iterator, criterion):
    epoch_loss, epoch_acc = 0, 0
    model.eval()
    with torch.no_grad():
        for text, lengths, labels in iterator:
            predictions = model(text.to(device), lengths).squeeze(1)
            epoch_loss += criterion(predictions, labels).item()
            epoch_acc += binary_accuracy(predictions, labels).item()
    return epoch_loss / len(iterator), epoch_acc / len(iterator)


g = torch.Generator().manual_seed(SEED)
train_loader = DataLoader(ReviewDataset(96, g), batch_size=16, shuffle=True, collate_fn=collate_fn)
valid_loader = DataLoader(ReviewDataset(32, g), batch_size=16, collate_fn=collate_fn)
model = SentimentRNN(len(vocab), 16, 16, 1, vocab["<pad>"], 0.3)
print(f"The model has {count_parameters(model):,} trainable parameters")
print(f"padding row: {model.embedding.weight[0].abs().sum().item():.1f}")
optimizer = optim.Adam(model.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()
model = model.to(device)
criterion = criterion.to(device)
best_valid_loss = float("inf")
for epoch in range(4):
    train_loss, train_acc = train(model, train_loader, optimizer, criterion)
    valid_loss, valid_acc = evaluate(model, valid_loader, criterion)
    if valid_loss < best_valid_loss:
        best_valid_loss = valid_loss
        torch.save(model.state_dict(), "sentiment-model.pt")
    print(f"\tTrain Loss: {train_loss:.3f} | Train Acc: {train_acc * 100:.2f}%")
    print(f"\t Val. Loss: {valid_loss:.3f} |  Val. Acc: {valid_acc * 100:.2f}%")
model.load_state_dict(torch.load("sentiment-model.pt", map_location=device))
print(f"best: {evaluate(model, valid_loader, criterion)[0]:.3f}")
