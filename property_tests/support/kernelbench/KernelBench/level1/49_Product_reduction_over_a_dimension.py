import torch
import torch.nn as nn


class Model(nn.Module):
    """The product of the elements along a dim."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.prod(x, dim=self.dim)


batch_size = 32
rows = 512
columns = 96
dim = 1


def get_inputs():
    return [torch.rand(batch_size, rows, columns)]


def get_init_inputs():
    return [dim]
