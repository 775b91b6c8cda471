"""A drawing of the e-graph of a whole program (`graph_optimizer`), with the e-nodes of an extraction in bold."""

from collections.abc import Mapping

from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.extraction import Extraction
from mirage_eg.graph_optimizer.program_terms import NumberedENode
from mirage_eg.ir.node import Node
from mirage_eg.ir.reached import reached
from mirage_eg.ir.shapes import text
from mirage_eg.report.egraph import DrawnClass, classes_svg


def program_egraph_svg(classes: EClasses, extraction: Extraction | None = None, boxes: int = 40) -> str:
    """The classes from the outputs on, each with its shape; weights are left out, classes of several e-nodes coloured."""
    chosen = {(it.class_, it.enode) for it in extraction.choices} if extraction is not None else set()
    drawn = {}
    for class_ in _from_roots(classes):
        enodes = classes.enodes[class_]
        words = [(_word(classes, it), [child for child in it.children if not classes.weight_only[child]]) for it in enodes]
        head = f"{text(classes.types[class_][0].shape)}{' (output)' if class_ in classes.roots else ''}"
        bold = frozenset(place for place, enode in enumerate(enodes) if (class_, enode) in chosen)
        drawn[class_] = DrawnClass(head, words, "prologue" if len(enodes) > 1 else "frame", bold)
    return classes_svg(drawn, boxes)


def _from_roots(classes: EClasses) -> list[int]:
    """The classes that are no weights, by their distance from the outputs."""

    def read(class_: int) -> list[int]:
        return [child for enode in classes.enodes[class_] for child in enode.children if not classes.weight_only[child]]

    return [*reached(classes.roots, read)]


def _word(classes: EClasses, enode: NumberedENode) -> str:
    """The op of an e-node, and its constants without names that are the op's own."""
    names: Mapping[str, Node] = classes.names
    shown = [names[it].op if isinstance(it, str) and it in names else _constant(it) for it in enode.constants]
    generic = enode.constructor in ("Unary", "Binary", "Other", "NoOp")
    folded = [child for child in enode.children if classes.weight_only[child]]
    weights = f" weight {text(classes.types[folded[0]][0].shape)}" if folded else ""
    return " ".join([*([] if generic else [enode.constructor]), *shown]) + weights


def _constant(value: object) -> str:
    return text(value) if isinstance(value, tuple) else str(value)
