"""Counts with their noun: 1 law, 1500 trials, 20,000 e-nodes."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and its noun, which has an s where there are several; `plural` is that of an irregular noun."""
    number = f"{count:,}" if count >= 10_000 else str(count)
    return f"{number} {noun if count == 1 else plural or f'{noun}s'}"
