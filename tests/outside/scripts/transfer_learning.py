"""A network is trained on one task; its head is replaced, its first layers frozen, for another."""

import copy

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class SmallNet(nn.Module):
    def __init__(self, num_classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.fc(torch.flatten(x, 1))


def make_task(classes, n=96):
    means = torch.randn(classes, 3, 8, 8)
    y = torch.randint(classes, (n,))
    x = means[y] + 0.5 * torch.randn(n, 3, 8, 8)
    return {
        "train": TensorDataset(x[: n * 2 // 3], y[: n * 2 // 3]),
        "val": TensorDataset(x[n * 2 // 3 :], y[n * 2 // 3 :]),
    }


def train_model(model, datasets, criterion, optimizer, scheduler, num_epochs=2):
    dataloaders = {
        k: DataLoader(d, batch_size=16, shuffle=k == "train") for k, d in datasets.items()
    }
    dataset_sizes = {k: len(d) for k, d in datasets.items()}
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    for epoch in range(num_epochs):
        print(f"Epoch {epoch}/{num_epochs - 1}")
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_model_wts)
    return model


base = SmallNet().to(device)
criterion = nn.CrossEntropyLoss()
optimizer_ft = optim.SGD(base.parameters(), lr=0.05, momentum=0.9)
scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=1, gamma=0.5)
base = train_model(base, make_task(6), criterion, optimizer_ft, scheduler)

new_task = make_task(3)
model = copy.deepcopy(base)
for param in model.features.parameters():
    param.requires_grad = False
num_ftrs = model.fc.in_features
model.fc = nn.Linear(num_ftrs, 3)
model = model.to(device)
before = model.features[0].weight.clone()
trainable = [name for name, p in model.named_parameters() if p.requires_grad]
print("trained:", trainable)
optimizer_conv = optim.SGD(
    filter(lambda p: p.requires_grad, model.parameters()), lr=0.05, momentum=0.9
)
model = train_model(
    model, new_task, criterion, optimizer_conv, lr_scheduler.StepLR(optimizer_conv, 1, 0.1)
)
print("frozen layers unchanged:", torch.equal(before, model.features[0].weight))

for param in model.parameters():
    param.requires_grad_(True)
optimizer = optim.AdamW(
    [
        {"params": model.features.parameters(), "lr": 1e-4},
        {"params": model.fc.parameters()},
    ],
    lr=1e-3,
)
exp_lr_scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
model = train_model(model, new_task, criterion, optimizer, exp_lr_scheduler)
print("rates:", [round(g["lr"], 8) for g in optimizer.param_groups])
