"""Train a network with one hidden layer in PyTorch, on a GPU if there is one."""

from __future__ import annotations

import torch
from torch import nn

from digits import Run

BATCH = 128


def main() -> None:
    """Train once, with what the command line says."""
    run = Run("torch", __doc__ or "")
    torch.manual_seed(run.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.Adam(network.parameters())
    images = torch.from_numpy(run.train).to(device)
    labels = torch.from_numpy(run.train_labels).to(device)
    for _ in range(run.epochs):
        for at in range(0, len(images), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                network(images[at : at + BATCH]), labels[at : at + BATCH]
            )
            loss.backward()
            optimizer.step()
    told = network(torch.from_numpy(run.test).to(device)).argmax(1).cpu().numpy()
    run.end(float((told == run.test_labels).mean()))


if __name__ == "__main__":
    main()
