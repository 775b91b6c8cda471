"""The lines of an emitted program that copy results into the memory of inputs, at its end."""

from collections.abc import Container

from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.written_inputs import written_inputs


def write_into_inputs(file: ProgramFile) -> None:
    """Write the copies of results into inputs, after all launches; results that show an old value are copied before."""
    graph = file.graph
    pairs = [(graph.outputs[result].operands[0], graph.input_values[place]) for result, place in written_inputs(graph).items()]
    copied = [(value, given) for value, given in pairs if file.names[value] != file.names[given]]
    file.step = len(graph.nodes)
    for value in dict.fromkeys(item.operands[0] for item in graph.outputs):
        if _shows(graph, value, {given for _, given in copied}):
            old, file.names[value] = file.names[value], file.new_name(f"t{value}")
            file.body.append(f"    {file.names[value]} = {old}.clone()")
    for value, given in copied:
        file.use(value)
        file.body.append(f"    {file.names[given]}.copy_({file.names[value]})")
    file.calls_torch |= bool(copied)


def _shows(graph: Graph, value: int, inputs: Container[int]) -> bool:
    """Whether a value may be in the memory of one of these inputs."""
    item = graph.node_of[value]
    return value in inputs or (item.kind is Kind.REARRANGEMENT and any(_shows(graph, it, inputs) for it in item.operands))
