"""Adversarial examples by the sign of the gradient of the loss at the input, and training on them."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

epsilons = [0, 0.05, 0.1, 0.2]
torch.manual_seed(42)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 8, 3, 1)
        self.dropout1 = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(8 * 4 * 4, 24)
        self.fc2 = nn.Linear(24, 5)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = F.dropout(F.relu(self.fc1(x)), p=0.2, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


labels = torch.randint(0, 5, (120,))
images = (torch.rand(5, 1, 12, 12)[labels] * 0.5 + 0.25 + 0.1 * torch.randn(120, 1, 12, 12)).clamp(
    0, 1
)
train_loader = DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True)
test_loader = DataLoader(TensorDataset(images[:40], labels[:40]), batch_size=1, shuffle=False)


def fgsm_attack(image, epsilon, data_grad):
    sign_data_grad = data_grad.sign()
    perturbed_image = image + epsilon * sign_data_grad
    return torch.clamp(perturbed_image, 0, 1)


def pgd_attack(model, x, y, eps=0.1, alpha=0.04, steps=3):
    adv = x.clone().detach()
    adv = torch.clamp(adv + torch.empty_like(adv).uniform_(-eps, eps), 0, 1).detach()
    for _ in range(steps):
        adv.requires_grad = True
        cost = F.nll_loss(model(adv), y)
        grad = torch.autograd.grad(cost, adv, retain_graph=False, create_graph=False)[0]
        adv = adv.detach() + alpha * grad.sign()
        delta = torch.clamp(adv - x, min=-eps, max=eps)
        adv = torch.clamp(x + delta, min=0, max=1).detach()
    return adv


def test(model, device, test_loader, epsilon):
    correct = 0
    adv_examples = []
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        data.requires_grad = True
        output = model(data)
        init_pred = output.max(1, keepdim=True)[1]
        if init_pred.item() != target.item():
            continue
        loss = F.nll_loss(output, target)
        model.zero_grad()
        loss.backward()
        data_grad = data.grad.data
        perturbed_data = fgsm_attack(data, epsilon, data_grad)
        output = model(perturbed_data)
        final_pred = output.max(1, keepdim=True)[1]
        if final_pred.item() == target.item():
            correct += 1
        elif len(adv_examples) < 3:
            adv_ex = perturbed_data.squeeze().detach().cpu().numpy()
            adv_examples.append((init_pred.item(), final_pred.item(), adv_ex))
    final_acc = correct / float(len(test_loader))
    print(f"Epsilon: {epsilon}\tTest Accuracy = {correct} / {len(test_loader)} = {final_acc}")
    return final_acc, adv_examples


model = Net().to(device)
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(8):
    model.train()
    total = 0.0
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        if epoch >= 6:
            model.eval()
            x = pgd_attack(model, x, y)
            model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("epoch", epoch, "loss", round(total / len(train_loader), 4))
model.eval()
accuracies, examples = [], []
for eps in epsilons:
    acc, ex = test(model, device, test_loader, eps)
    accuracies.append(acc)
    examples.append(ex)
print("examples:", [[(a, b, tuple(image.shape)) for a, b, image in ex] for ex in examples])
