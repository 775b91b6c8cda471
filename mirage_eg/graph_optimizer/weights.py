"""Which inputs of a program are weights: tensors that stay the same from run to run, so that functions of them are folded."""

from collections.abc import Sequence

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import NORMS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.weights import matching_inputs, weights_to_join
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED

_PARAMETERS = dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED, *NORMS), 1)  # operands from this one on


def weights_of(program: Graph, patterns: Sequence[str] | None = None) -> frozenset[int]:
    """The values of the inputs that are weights.

    `patterns` are names of inputs, `*` and `?` stand for any letters. Without patterns the weights are the marked inputs
    (`ir.weights`). Where none of them has numbers, an input is a weight if the program reads it only as the second factor of a
    product with two dims, as the filter of a convolution, as the factor or offset of a norm, or with one dim in an elementwise
    op; rearrangements before that do not matter.

    Raises OptionError: a pattern that no input has.
    """
    values = program.input_values
    if patterns is not None:
        return frozenset(values[place] for place in matching_inputs(program, patterns))
    return weights_to_join(program) or frozenset(value for value in values if value in _read_as_weights(program))


def _read_as_weights(program: Graph) -> set[int]:
    """The values that every reader takes as a weight; a value that nothing reads is none."""
    readers: dict[int, list[tuple[Node, int, range]]] = {}
    for item, values in program.numbered():
        for place, operand in enumerate(item.operands):
            readers.setdefault(operand, []).append((item, place, values))
    found: set[int] = set()
    for value in reversed(range(len(program.types))):
        own = readers.get(value, [])
        if own and all(_takes_weight(program, value, *reader, found) for reader in own):
            found.add(value)
    return found


def _takes_weight(program: Graph, value: int, item: Node, place: int, values: range, found: set[int]) -> bool:
    shape = program.types[value].shape
    match item.kind, item.op:
        case Kind.MATMUL, _:
            return place == 1 and len(shape) == 2
        case _, op if op in _PARAMETERS:
            return place >= _PARAMETERS[op]
        case Kind.REARRANGEMENT, _:
            return values[0] in found
        case Kind.ELEMENTWISE, _:
            largest = max(range(len(item.operands)), key=lambda i: len(program.types[item.operands[i]].shape))
            is_row = sum(extent > 1 for extent in shape) <= 1 < len(program.types[values[0]].shape)
            return (is_row and place != largest) or (len(item.operands) == 1 and values[0] in found)
    return False
