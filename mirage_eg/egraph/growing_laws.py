"""Which laws keep an e-graph growing: a smallest set of them that does so by itself, found by leaving laws out."""

from collections.abc import Callable, Sequence

from mirage_eg.egraph.laws import Law


def culprits(laws: Sequence[Law], endless: Callable[[Sequence[Law]], bool]) -> list[Law]:
    """Of laws with which saturation does not end, as `endless` says of any of them, few with which it does not end either.

    None where it does not end without them. Each is the first law that, with those found before it and the laws before it,
    keeps the e-graph growing: without it the others end. So n laws take about log2 n saturations for each that is found.
    """
    found: list[Law] = []
    if endless(found):
        return found
    while laws and not (found and endless(found)):
        ends, grows = 0, len(laws)  # saturation ends with the first `ends` laws, and not with the first `grows`
        while grows - ends > 1:
            middle = (ends + grows) // 2
            if endless([*laws[:middle], *found]):
                grows = middle
            else:
                ends = middle
        found.append(laws[ends])
        laws = laws[:ends]
    return found


def blame(laws: Sequence[Law]) -> str:
    """Culprits as the head of a message."""
    first, *others = laws
    together = "".join(f", with law {law.name!r} at {law.place}" for law in others)
    question = "do they feed each other?" if others else "does it feed itself?"
    return f"{first.place}: law {first.name!r}{together} keeps the e-graph growing ({question})"
