"""Data-parallel training: torchrun --nproc_per_node 2 ddp_training.py"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)
        )

    def forward(self, x):
        return self.net(x)


def setup():
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    return dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0))


def make_data(n=180):
    g = torch.Generator().manual_seed(17)
    x = torch.randn(n, 10, generator=g)
    w = torch.randn(10, 3, generator=g)
    return TensorDataset(x, (x @ w).argmax(dim=1))


def train(model, loader, sampler, optimizer, epoch, device):
    model.train()
    sampler.set_epoch(epoch)
    ddp_loss = torch.zeros(2).to(device)
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item() * len(data)
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    return ddp_loss[0] / ddp_loss[1]


def test(model, loader, device):
    model.eval()
    correct = torch.zeros(2).to(device)
    with torch.no_grad():
        for data, target in loader:
            pred = model(data.to(device)).argmax(dim=1, keepdim=True)
            correct[0] += pred.eq(target.to(device).view_as(pred)).sum().item()
            correct[1] += len(data)
    dist.all_reduce(correct)
    return (correct[0] / correct[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=15)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    rank, world_size, local_rank = setup()
    torch.manual_seed(rank)
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    dataset = make_data()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, pin_memory=False)
    model = DDP(Net().to(device), device_ids=None)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for epoch in range(args.epochs):
        loss = train(model, loader, sampler, optimizer, epoch, device)
        accuracy = test(model, loader, device)
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.5f}, accuracy {accuracy:.4f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "ddp.pt")
    dist.barrier()
    state = torch.load("ddp.pt", map_location=device)
    spread = torch.stack([(p - state[k]).abs().max() for k, p in model.module.state_dict().items()])
    largest = spread.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{len(state)} tensors, largest difference of ranks {largest.item():.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
