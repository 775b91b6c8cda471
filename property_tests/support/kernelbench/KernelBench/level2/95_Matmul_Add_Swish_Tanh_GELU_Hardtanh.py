import torch
import torch.nn as nn


class Model(nn.Module):
    """Four functions of a sum."""

    def __init__(self, in_features, out_features, add_value_shape):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x):
        x = self.linear(x) + self.add_value
        x = torch.tanh(torch.sigmoid(x) * x)
        return torch.nn.functional.hardtanh(torch.nn.functional.gelu(x), min_val=-1, max_val=1)


batch_size = 1024
in_features = 8192
out_features = 8192
add_value_shape = (out_features,)


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, add_value_shape]
