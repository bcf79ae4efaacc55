"""Embeddings of images by a triplet loss: equal classes near, others far."""

import random

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.by_class = {int(c): torch.where(labels == c)[0] for c in labels.unique()}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        label = self.labels[index].item()
        same = self.by_class[label]
        positive = same[random.randrange(len(same))]
        other = random.choice([c for c in self.by_class if c != label])
        negative = random.choice(self.by_class[other].tolist())
        return self.images[index], self.images[positive], self.images[negative], label


class EmbeddingNet(nn.Module):
    def __init__(self, dim=8):
        super(EmbeddingNet, self).__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(1, 8, 5),
            nn.PReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(8, 16, 3),
            nn.PReLU(),
            nn.MaxPool2d(2, stride=2),
        )
        self.fc = nn.Sequential(nn.Linear(16 * 2 * 2, 32), nn.PReLU(), nn.Linear(32, dim))

    def forward(self, x):
        output = self.convnet(x)
        output = output.view(output.size()[0], -1)
        return nn.functional.normalize(self.fc(output), p=2, dim=1)


class TripletNet(nn.Module):
    def __init__(self, embedding_net):
        super(TripletNet, self).__init__()
        self.embedding_net = embedding_net

    def forward(self, *xs):
        return tuple(self.embedding_net(x) for x in xs)

    def get_embedding(self, x):
        return self.embedding_net(x)


def make_data(n, classes=4):
    prototypes = torch.rand(classes, 1, 16, 16)
    labels = torch.arange(n) % classes
    return prototypes[labels] + 0.2 * torch.randn(n, 1, 16, 16), labels


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        z = model.get_embedding(images)
        distances = torch.cdist(z, z)
        distances.fill_diagonal_(float("inf"))
        nearest = distances.argmin(dim=1)
    return (labels[nearest] == labels).float().mean().item()


random.seed(3)
torch.manual_seed(3)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
images, labels = make_data(96)
loader = DataLoader(Triplets(images, labels), batch_size=16, shuffle=True)
model = TripletNet(EmbeddingNet()).to(device)
loss_fn = nn.TripletMarginLoss(margin=0.5, p=2)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
scheduler = optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.1, last_epoch=-1)
print(f"before: nearest neighbour accuracy {accuracy(model, images, labels):.3f}")
for epoch in range(3):
    model.train()
    losses = []
    active = 0
    for anchor, positive, negative, _ in loader:
        optimizer.zero_grad()
        a, p, n = model(anchor.to(device), positive.to(device), negative.to(device))
        loss = loss_fn(a, p, n)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        d_ap = (a - p).pow(2).sum(1).sqrt()
        d_an = (a - n).norm(dim=1)
        active += ((d_ap - d_an + 0.5) > 0).sum().item()
    scheduler.step()
    print("epoch %d: loss %.4f, active triplets %d" % (epoch, sum(losses) / len(losses), active))
print(f"after: nearest neighbour accuracy {accuracy(model, images, labels):.3f}")
