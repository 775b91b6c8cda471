"""How well one series of numbers ranks another."""

from collections.abc import Sequence


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None where it is not defined."""
    if len(x) < 3:
        return None
    ranks_x, ranks_y = _ranks(x), _ranks(y)
    mean = (len(x) - 1) / 2
    products = sum((a - mean) * (b - mean) for a, b in zip(ranks_x, ranks_y, strict=True))
    squares = [sum((rank - mean) ** 2 for rank in ranks) for ranks in (ranks_x, ranks_y)]
    return products / (squares[0] * squares[1]) ** 0.5 if all(squares) else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = (start + end - 1) / 2
        start = end
    return ranks
