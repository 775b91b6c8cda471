"""The self-check of an emitted program: the original program in PyTorch, and a main that compares and times."""

from collections.abc import Mapping, Sequence
from math import prod

from mirage_eg.backends.evaluator.input_scales import input_scales, large_magnitude
from mirage_eg.backends.triton.op_table import torch_attributes, torch_text
from mirage_eg.backends.triton.tiles import new_name
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import to_a_type
from mirage_eg.ir.sizes import SizeArgument, most
from mirage_eg.ir.whole_inputs import causal_inputs, root_inputs, whole_inputs

_TOLERANCE = {DType.float16: 2e-2, DType.bfloat16: 1e-1, DType.float32: 1e-3, DType.float64: 1e-9}  # of the largest output
_TOLERANCE |= {dtype: 2 * dtype.unit_roundoff for dtype in DType if dtype.is_float8}  # two neighbours
_DOUBLE_BYTES = 24 << 30  # a reference that would hold more than this in float64 is computed in float32


def write_reference(program: Graph, inputs: Sequence[str], sizes: Mapping[str, SizeArgument]) -> str:
    """The program in PyTorch, in double precision where it fits; a value is freed after its last reader."""
    ended = _last_readers(program)
    precision = "float64" if 8 * _most_elements(program, ended) <= _DOUBLE_BYTES else "float32"
    taken = {*inputs, *sizes, "torch"}
    names: dict[int, str] = {}
    given = iter(inputs)
    lines = [f"def reference({', '.join(inputs)}):", f'    """The program, op by op in {precision}."""', "    import torch", ""]
    lines += [f"    {name} = {inputs[size.input]}.shape[{size.dim}]" for name, size in sizes.items()]
    returned = []
    for number, (item, values) in enumerate(program.numbered()):
        match item.op:
            case "input":
                names[values[0]] = name = next(given)
                if not program.types[values[0]].dtype.is_integer:
                    lines.append(f"    {name} = {name}.to(torch.{precision})")
            case "output":
                returned.append(names[item.operands[0]])
            case "block":
                raise UnsupportedError(
                    f"node {number}: block: a program of library ops is wanted for the reference, not a µGraph"
                )
            case _:
                [value] = values
                names[value] = new_name(taken, f"t{value}")
                operands = [names[i] for i in item.operands] or inputs[:1]
                shapes = [program.types[i].shape for i in item.operands]
                attributes = dict(torch_attributes(item, program.types[value].dtype))
                if not item.operands and not program.types[value].dtype.is_integer:
                    attributes["dtype"] = precision
                call = torch_text(item, operands, program.types[value].dtype, attributes, shapes)
                if to_a_type(item.op) and not program.types[value].dtype.is_integer:
                    call = f"{call}.to(torch.{precision})"  # rounded
                lines.append(f"    {names[value]} = {call}")
        if gone := [names[value] for value in ended.get(number, ()) if value in names]:
            lines.append(f"    del {', '.join(gone)}")
    return "\n".join([*lines, f"    return ({', '.join(returned)},)\n"])


def _last_readers(program: Graph) -> dict[int, list[int]]:
    """The values that are read last by the node of a number; results and the first input, which tells the device, are kept."""
    last: dict[int, int] = {}
    kept = {0} | {operand for item in program.nodes if item.op == "output" for operand in item.operands}
    for number, (item, values) in enumerate(program.numbered()):
        last |= dict.fromkeys(item.operands, number)
        if item.op not in ("input", "output"):
            last |= dict.fromkeys(values, number)
    ended: dict[int, list[int]] = {}
    for value, number in last.items():
        if value not in kept:
            ended.setdefault(number, []).append(value)
    return ended


def _most_elements(program: Graph, ended: Mapping[int, Sequence[int]]) -> int:
    """The elements that a reference holds at once, at most; all inputs are there from the beginning on."""
    sizes = [prod(map(most, type_.shape)) for type_ in program.types]
    held = largest = sum(prod(map(most, type_.shape)) for type_ in program.input_types)
    for number, (item, values) in enumerate(program.numbered()):
        if item.op not in ("input", "output"):
            held += sum(sizes[value] for value in values)
            largest = max(largest, held)
        held -= sum(sizes[value] for value in ended.get(number, ()))
    return largest


CAUSAL_MASK = (
    'torch.ones(shape, device="cuda").tril(max(0, shape[-1] - shape[-2]))'
    ' * (torch.arange(shape[-1], device="cuda") < shape[-1] - CAUSAL[len(tensors)])'
)
_RUN = "    timed = lambda: run(*tensors)"
_TIMED = "    timed = lambda: run(*tensors, buffers=buffers)"


def write_main(program: Graph, outputs: Sequence[str], buffers: bool, sizes: Sequence[str]) -> str:
    """The part that runs when the file is run, at the largest of `sizes`; with `buffers`, the file has `allocate`."""
    table, chosen, allocated = "INPUTS", "", "buffers = allocate(tensors[0].device)"
    if sizes:
        table, chosen = "inputs", "    sizes = {name: largest for name, (_, _, _, largest, _) in SIZES.items()}\n"
        chosen += "    inputs, _ = layouts(**sizes)\n"
        allocated = "buffers = allocate(tensors[0].device, **sizes)"
    tolerances = tuple(_TOLERANCE.get(type_.dtype, 0.0) for type_ in program.output_types)
    scales, whole = input_scales(program), whole_inputs(program)
    bounds = f"WHOLE = {whole}  # inputs of whole numbers below these\n" if whole else ""
    random = 'torch.randn(shape, device="cuda")'
    values = f"scale * {random}"
    if whole:
        drawn = 'torch.randint(WHOLE[len(tensors)], shape, device="cuda")'
        values = f"{drawn} if len(tensors) in WHOLE else {values}"
    if causal := causal_inputs(program):
        bounds += f"CAUSAL = {causal}  # constant masks: causal ones, without so many of the last columns\n"
        values = f"{CAUSAL_MASK} if len(tensors) in CAUSAL else {values}"
    if roots := sorted(root_inputs(expand(program))):
        bounds += f"ROOTS = {roots}  # inputs whose roots are taken: positive\n"
        values = f'0.5 + torch.rand(shape, device="cuda") if len(tensors) in ROOTS else {values}'
    return f'''# Normal inputs times these keep the program within the range of its types, also MAGNITUDES times larger.
SCALES = {scales}
MAGNITUDES = {(1.0, large_magnitude(program, scales))}
{bounds}

def main():
    """Check `run` against `reference` on random inputs and print the error and the time."""
    import torch
    from triton.testing import do_bench

    torch.manual_seed(0)
{chosen}    tensors = []
    for scale, (shape, dtype, strides) in zip(SCALES, {table}.values()):
        tensor = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="cuda")
        tensors.append(tensor.copy_({values}))
    exact = reference(*tensors)
    results = run(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    for name, got, wanted, tolerance in zip({tuple(outputs)}, results, exact, {tolerances}):
        error = ((got - wanted).abs().max() / wanted.abs().max()).item()
        print(f"{{name}}: largest error {{error:.2e}} of the largest element")
        if not error <= tolerance:
            raise SystemExit(f"{{name}}: the error is above {{tolerance:.0e}}")
{f"    {allocated}{chr(10)}{_TIMED}" if buffers else _RUN}
    print(f"{{1000 * do_bench(timed, return_mode='median'):.1f}} µs")


if __name__ == "__main__":
    main()
'''
