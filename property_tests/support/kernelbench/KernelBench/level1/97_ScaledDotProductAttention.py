import torch
import torch.nn as nn


class Model(nn.Module):
    """Attention."""

    def forward(self, Q, K, V):
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V)


batch_size = 32
num_heads = 32
sequence_length = 512
embedding_dimension = 1024


def get_inputs():
    return [torch.rand(batch_size, num_heads, sequence_length, embedding_dimension) for _ in range(3)]


def get_init_inputs():
    return []
