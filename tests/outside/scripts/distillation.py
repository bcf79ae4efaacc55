"""A small student learns from a larger teacher: soft targets, and a loss on hidden features."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"


class DeepNN(nn.Module):
    def __init__(self, num_classes=5, width=16):
        super(DeepNN, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(width * 36, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, num_classes)
        )

    def forward(self, x):
        x = self.features(x)
        hidden = torch.flatten(x, 1)
        return self.classifier(hidden), hidden


class LightNN(nn.Module):
    def __init__(self, num_classes=5):
        super(LightNN, self).__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2))
        self.classifier = nn.Sequential(nn.Linear(4 * 36, num_classes))
        self.regressor = nn.Linear(4 * 36, 16 * 36)

    def forward(self, x):
        hidden = torch.flatten(self.features(x), 1)
        return self.classifier(hidden), self.regressor(hidden)


def train(model, train_loader, epochs, learning_rate, device):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs, _ = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader)}")


def train_knowledge_distillation(teacher, student, loader, epochs, lr, T, weights, device):
    ce_loss = nn.CrossEntropyLoss()
    cosine_loss = nn.CosineEmbeddingLoss()
    kl_loss = nn.KLDivLoss(reduction="batchmean", log_target=True)
    optimizer = optim.Adam(student.parameters(), lr=lr)
    teacher.eval()
    student.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits, teacher_hidden = teacher(inputs)
            student_logits, student_hidden = student(inputs)
            soft_loss = kl_loss(
                F.log_softmax(student_logits / T, dim=-1), F.log_softmax(teacher_logits / T, dim=-1)
            ) * (T**2)
            hidden_loss = cosine_loss(
                student_hidden, teacher_hidden, target=torch.ones(inputs.size(0)).to(device)
            )
            label_loss = ce_loss(student_logits, labels)
            loss = weights[0] * soft_loss + weights[1] * hidden_loss + weights[2] * label_loss
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(loader)}")


def test(model, loader, device):
    model.to(device)
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, labels in loader:
            outputs, _ = model(inputs.to(device))
            _, predicted = torch.max(outputs.data, 1)
            total += labels.size(0)
            correct += (predicted == labels.to(device)).sum().item()
    print(f"Test Accuracy: {100 * correct / total:.2f}%")


torch.manual_seed(42)
labels = torch.randint(5, (160,))
images = torch.rand(5, 1, 12, 12)[labels] + 0.4 * torch.randn(160, 1, 12, 12)
dataset = TensorDataset(images, labels)
train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
test_loader = DataLoader(dataset, batch_size=80, shuffle=False)
teacher = DeepNN().to(device)
train(teacher, train_loader, epochs=2, learning_rate=0.002, device=device)
test(teacher, test_loader, device)
torch.manual_seed(42)
student = LightNN().to(device)
print("Norm of 1st layer:", torch.norm(student.features[0].weight).item())
total_params = "{:,}".format(sum(p.numel() for p in student.parameters()))
print(f"student parameters: {total_params}")
train_knowledge_distillation(
    teacher, student, train_loader, 2, 0.002, 2.0, (0.25, 0.25, 0.5), device
)
test(student, test_loader, device)
