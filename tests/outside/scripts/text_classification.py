"""Classifies short texts by the mean of their word embeddings."""

from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataset import random_split

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

subjects = {
    0: "team match goal coach season player league win".split(),
    1: "market stock price bank profit trade share fund".split(),
    2: "planet star orbit rocket telescope moon light probe".split(),
    3: "court law judge vote minister senate bill party".split(),
}
fillers = "the a of and to in on after before new first last says".split()


def make_texts(n):
    for _ in range(n):
        label = int(torch.randint(4, (1,)))
        words = []
        for _ in range(int(torch.randint(4, 10, (1,)))):
            source = subjects[label] if torch.rand(1).item() < 0.5 else fillers
            words.append(source[torch.randint(len(source), (1,)).item()])
        yield label + 1, " ".join(words)


class Vocab:
    def __init__(self, texts, specials=("<unk>",)):
        counts = Counter(w for _, text in texts for w in text.split())
        self.itos = [*specials, *sorted(counts)]
        self.stoi = {w: i for i, w in enumerate(self.itos)}

    def __len__(self):
        return len(self.itos)

    def __call__(self, words):
        return [self.stoi.get(w, 0) for w in words]


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        initrange = 0.5
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.fc.weight.data.uniform_(-initrange, initrange)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        embedded = self.embedding(text, offsets)
        return self.fc(embedded)


train_iter = list(make_texts(200))
vocab = Vocab(train_iter)


def text_pipeline(x):
    return vocab(x.split())


def label_pipeline(x):
    return int(x) - 1


def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for _label, _text in batch:
        label_list.append(label_pipeline(_label))
        processed_text = torch.tensor(text_pipeline(_text), dtype=torch.int64)
        text_list.append(processed_text)
        offsets.append(processed_text.size(0))
    label_list = torch.tensor(label_list, dtype=torch.int64)
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    text_list = torch.cat(text_list)
    return label_list.to(device), text_list.to(device), offsets.to(device)


def train(dataloader):
    model.train()
    total_acc, total_count = 0, 0
    for idx, (label, text, offsets) in enumerate(dataloader):
        optimizer.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
        if idx % 5 == 0 and idx > 0:
            print(f"{idx}/{len(dataloader)} batches, accuracy {total_acc / total_count:.3f}")
            total_acc, total_count = 0, 0


def evaluate(dataloader):
    model.eval()
    total_acc, total_count = 0, 0
    with torch.no_grad():
        for label, text, offsets in dataloader:
            predicted_label = model(text, offsets)
            total_acc += (predicted_label.argmax(1) == label).sum().item()
            total_count += label.size(0)
    return total_acc / total_count


num_class = len({label for label, _ in train_iter})
model = TextClassificationModel(len(vocab), 16, num_class).to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)
num_train = int(len(train_iter) * 0.9)
split_train, split_valid = random_split(train_iter, [num_train, len(train_iter) - num_train])
train_dataloader = DataLoader(split_train, batch_size=16, shuffle=True, collate_fn=collate_batch)
valid_dataloader = DataLoader(split_valid, batch_size=16, shuffle=True, collate_fn=collate_batch)
total_accu = None
for epoch in range(1, 4):
    train(train_dataloader)
    accu_val = evaluate(valid_dataloader)
    if total_accu is not None and total_accu > accu_val:
        scheduler.step()
    else:
        total_accu = accu_val
    print(f"end of epoch {epoch}, valid accuracy {accu_val:.3f}")


def predict(text):
    with torch.no_grad():
        text = torch.tensor(text_pipeline(text))
        return model(text, torch.tensor([0])).argmax(1).item() + 1


model = model.to("cpu")
print("class of a text on space:", predict("the probe in orbit of the unknown moon"))
