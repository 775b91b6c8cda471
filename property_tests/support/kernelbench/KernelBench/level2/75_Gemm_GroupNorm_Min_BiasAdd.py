import torch
import torch.nn as nn


class Model(nn.Module):
    """Group normalization, a minimum, a bias."""

    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = torch.min(self.group_norm(self.linear(x)), dim=1, keepdim=True)[0]
        return x + self.bias


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 512
bias_shape = (1, out_features, 1, 1)


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups, bias_shape]
