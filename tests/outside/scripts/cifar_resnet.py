"""A residual network on small colour images, with label smoothing and a one-cycle rate."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split

device = "cuda" if torch.cuda.is_available() else "cpu"


class ColouredShapes(Dataset):
    def __init__(self, n, size=16, classes=5, transform=None):
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.randint(classes, (n,), generator=generator)
        self.colours = torch.rand(classes, 3, 1, 1, generator=generator)
        self.noise = torch.randn(n, 3, size, size, generator=generator)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        label = self.labels[idx]
        image = self.colours[label] + 0.5 * self.noise[idx]
        if self.transform:
            image = self.transform(image)
        return image, int(label)


def normalize(image):
    return (image - 0.5) / 0.25


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(
            in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != self.expansion * planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(
                    in_planes, self.expansion * planes, kernel_size=1, stride=stride, bias=False
                ),
                nn.BatchNorm2d(self.expansion * planes),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, block, num_blocks, num_classes=5):
        super().__init__()
        self.in_planes = 8
        self.conv1 = nn.Conv2d(3, 8, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self._make_layer(block, 8, num_blocks[0], stride=1)
        self.layer2 = self._make_layer(block, 16, num_blocks[1], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.linear = nn.Linear(16 * block.expansion, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def _make_layer(self, block, planes, num_blocks, stride):
        layers = []
        for s in [stride] + [1] * (num_blocks - 1):
            layers.append(block(self.in_planes, planes, s))
            self.in_planes = planes * block.expansion
        return nn.Sequential(*layers)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.layer2(self.layer1(out))
        out = self.avgpool(out)
        out = out.view(out.size(0), -1)
        return self.linear(out)


torch.manual_seed(0)
train_set, val_set = random_split(ColouredShapes(200, transform=normalize), [160, 40])
train_loader = DataLoader(train_set, batch_size=20, shuffle=True, drop_last=True, num_workers=0)
val_loader = DataLoader(val_set, batch_size=40, shuffle=False)
net = ResNet(BasicBlock, [1, 1]).to(device)
print("parameters:", sum(p.numel() for p in net.parameters() if p.requires_grad))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
epochs = 2
scheduler = optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.05, epochs=epochs, steps_per_epoch=len(train_loader)
)
best_acc = 0.0
for epoch in range(epochs):
    net.train()
    running_loss, correct, total = 0.0, 0, 0
    for inputs, targets in train_loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=True)
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running_loss += loss.item() * inputs.size(0)
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
    print(
        f"epoch {epoch} loss {running_loss / total:.4f} acc {correct / total:.3f}"
        f" lr {scheduler.get_last_lr()[0]:.6f}"
    )
    net.eval()
    with torch.inference_mode():
        hits = sum(
            (net(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in val_loader
        )
    if hits / len(val_set) > best_acc:
        best_acc = hits / len(val_set)
        torch.save({"net": net.state_dict(), "acc": best_acc, "epoch": epoch}, "ckpt.pth")
print("best accuracy: %.2f" % best_acc)
