import torch
import torch.nn as nn


class Model(nn.Module):
    """A matrix times a vector as a matrix of one column."""

    def forward(self, A, B):
        return torch.matmul(A, B)


M = 256
K = 131072


def get_inputs():
    return [torch.rand(M, K), torch.rand(K, 1)]


def get_init_inputs():
    return []
