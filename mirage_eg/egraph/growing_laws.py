"""Growing laws: a minimal set of laws with which saturation does not end, by bisection, and the e-nodes that laws add."""

from collections.abc import Callable, Collection, Sequence

from mirage_eg.egraph.laws import Law


def culprits(laws: Sequence[Law], endless: Callable[[Sequence[Law]], bool]) -> list[Law]:
    """A minimal list of `laws` with which saturation does not end, as `endless` decides.

    The list is empty if saturation does not end without any of them. Each culprit is the first law that, with the culprits so
    far and all laws before it, keeps the e-graph growing. n laws take about log2 n saturations for each culprit.
    """
    guilty: list[Law] = []
    if endless(guilty):
        return guilty
    while laws and not (guilty and endless(guilty)):
        ends, grows = 0, len(laws)  # saturation ends with the first `ends` laws, and not with the first `grows`
        while grows - ends > 1:
            middle = (ends + grows) // 2
            if endless([*laws[:middle], *guilty]):
                grows = middle
            else:
                ends = middle
        guilty.append(laws[ends])
        laws = laws[:ends]
    return guilty


def blame(laws: Sequence[Law]) -> str:
    """The start of a message that names the culprits."""
    first, *others = laws
    together = "".join(f", with law {law.name!r} at {law.place}" for law in others)
    question = "do they feed each other?" if others else "does it feed itself?"
    return f"{first.place}: law {first.name!r}{together} keeps the e-graph growing ({question})"


_SHOWN = 2  # laws besides the culprits


def growth_shares(added: Sequence[tuple[str, int]], culprits: Sequence[str], innocent: Collection[str] = ()) -> str:
    """The end of the message: e-nodes of the culprits, and of the other laws but the `innocent` that added most."""
    total = sum(count for _, count in added)
    if not total:
        return ""
    named = [(law, count) for law, count in added if law in culprits]
    others = [(law, count) for law, count in added if law not in culprits and law not in innocent and count][:_SHOWN]
    words = ", ".join(f"{law!r} {count:,}" for law, count in [*named, *others])
    return f"; of {total:,} new e-nodes: {words}"
