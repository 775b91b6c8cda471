import torch
import torch.nn as nn


class Model(nn.Module):
    """diag(a) B."""

    def forward(self, a, B):
        return torch.diag(a) @ B


M = 4096
N = 4096


def get_inputs():
    return [torch.rand(N), torch.rand(N, M)]


def get_init_inputs():
    return []
