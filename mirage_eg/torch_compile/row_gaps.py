"""Results of large products with gaps between their rows, as Inductor returns them: cuBLAS is several times faster so."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from mirage_eg.backends.launches.aligned_rows import narrowed_rows, unaligned_products, with_gaps
from mirage_eg.frontend.fx_values import Fx, has_fixed_sizes, shares_memory
from mirage_eg.frontend.symbolic_sizes import is_row_major
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.written_inputs import with_output_marks

_OF_STRIDES = ("aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter")


def with_row_gaps(program: Graph, outputs: Sequence[Fx], readers: Mapping[Fx, Iterable[Fx]], inside: Container[Fx]) -> Graph:
    """The program with gaps between the rows of the results that are large products with rows at unaligned bytes,
    or the first columns of a product with wider rows.

    Not of a result that a node `inside` a region reads, which wants no gaps, or that is viewed with other rows.
    """
    gaps = [with_gaps(kind) for kind in program.output_types]
    marked = with_output_marks(program, [{"strides": it} for it in gaps])  # as if all had them
    padded = {it.result for it in unaligned_products(marked).values() if it.is_padded and it.has_gaps}
    products = padded | narrowed_rows(program)
    if not products:
        return program
    marks: list[dict[str, Shape]] = []
    for each, item, kind, strides in zip(outputs, program.outputs, program.output_types, gaps, strict=True):
        rows = has_fixed_sizes(each) and (is_row_major(value := each.meta["val"]) or tuple(value.stride()) == strides)
        may = rows and item.get("strides") is None and _shown(program, item.operands[0]) in products
        may = may and kind.dtype is program.types[item.operands[0]].dtype
        free = may and all(reader not in inside and _keeps_rows(reader, kind.shape) for reader in readers[each])
        marks.append({"strides": strides} if free else {})
    return with_output_marks(program, marks)


def _shown(program: Graph, value: int) -> int:
    """The value whose memory reshapes with the same rows show."""
    while (item := program.node_of[value]).op in RESHAPES:
        [source] = item.operands
        if program.types[source].shape[-1] != program.types[value].shape[-1]:
            break
        value = source
    return value


def _keeps_rows(reader: Fx, shape: Shape) -> bool:
    """Whether a node takes a value with gaps between its rows: an op of ATen that computes, or a view that shows whole rows, as
    those have that read it."""
    if reader.op == "output":
        return True
    if reads_memory(reader):
        return False
    if not shares_memory(reader):
        return True
    value = reader.meta["val"]
    if isinstance(value, (list, tuple)) or not has_fixed_sizes(reader) or value.shape[-1:] != shape[-1:]:
        return False
    return value.stride()[-1] == 1 and all(_keeps_rows(it, shape) for it in reader.users)


def reads_memory(node: Fx) -> bool:
    """Whether a node may read an operand's memory as that of torch's strides: it is no op of ATen, or one of strides."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or not schema.name.startswith("aten::") or schema.name in _OF_STRIDES


def has_row_gaps(value: Any) -> bool:
    """Whether a tensor of fixed sizes is row-major but for gaps between its rows."""
    *rows, last = value.stride()
    dense = row_major(tuple(value.shape[:-1]))
    return last == 1 and bool(rows) and rows[-1] > value.shape[-1] and tuple(rows) == tuple(it * rows[-1] for it in dense)
