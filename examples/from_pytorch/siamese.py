"""A siamese network that tells digits apart by distance: python examples/from_pytorch/siamese.py"""

import nnmpi as torch
import nnmpi.nn as nn
import nnmpi.nn.functional as F
from nnmpi import optim
from nnmpi.data import load
from nnmpi.utils.data import DataLoader, Dataset

EPOCHS = 3

torch.manual_seed(0)
device = torch.device("cpu")


class Triplets(Dataset):
    """An anchor, another image of its class, and one of another class."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.by_class = [torch.arange(len(labels))[labels == c] for c in range(10)]

    def __len__(self):
        return len(self.labels)

    def _one_of(self, c):
        rows = self.by_class[c]
        return self.images[rows[torch.randint(len(rows), (1,)).item()]]

    def __getitem__(self, i):
        c = int(self.labels[i])
        other = (c + torch.randint(1, 10, (1,)).item()) % 10
        return self.images[i], self._one_of(c), self._one_of(other)


class Embedding(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv1", nn.Conv2d(1, 16, 3, padding=1))
        self.features.add_module("relu1", nn.ReLU())
        self.features.add_module("pool", nn.MaxPool2d(2))
        self.features.add_module("conv2", nn.Conv2d(16, 32, 3, padding=1))
        self.features.add_module("relu2", nn.ReLU())
        self.features.add_module("mean", nn.AdaptiveAvgPool2d(2))
        self.fc = nn.Linear(32 * 2 * 2, size)
        self.register_parameter("scale", nn.Parameter(torch.ones(1)))

    def forward(self, x):
        x = torch.flatten(self.features(x), 1)
        return self.scale * F.normalize(self.fc(x), p=2, dim=1)


def tensors(split):
    return torch.tensor(split.x).float().view(-1, 1, 8, 8) / 16, torch.tensor(split.y)


digits = load("digits", seed=0)
images, labels = tensors(digits.train)
loader = DataLoader(Triplets(images, labels), batch_size=64, shuffle=True)
model = Embedding().to(device)
criterion = nn.TripletMarginLoss(margin=0.5)
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for epoch in range(EPOCHS):
    for batch in loader:
        anchor, positive, negative = (model(x.to(device)) for x in batch)
        loss = criterion(anchor, positive, negative)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch + 1}   loss {sum(losses[-len(loader) :]) / len(loader):.4f}")

model.eval()
with torch.no_grad():
    known, (x, y) = model(images.to(device)), tensors(digits.test)
    likeness = F.cosine_similarity(model(x).unsqueeze(1), known.unsqueeze(0), dim=-1)
    nearest = labels[likeness.argmax(dim=1)]
    print(f"nearest neighbour is of the class: {(nearest == y).float().mean().item():.2%}")
torch.save(model.state_dict(), "siamese.safetensors")
