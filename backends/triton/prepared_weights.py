"""The part of an emitted program that computes values of weights alone: once, and again where a weight has changed.

`prepare` computes them by torch. `prepared` keeps them by the addresses of the weights and torch's counter of changes in place,
which inference tensors lack. In a CUDA graph that is being captured nothing is kept.
"""

from collections.abc import Iterator

from mirage_eg.backends.triton.program_file import ProgramFile

MOST_KEPT = 256  # sets of weights: equal layers of a model share one program
NAMES = ("PREPARED", "WEIGHTS", "KEPT", "prepare", "prepared")


def values_kept(file: ProgramFile) -> list[int]:
    """The values of weights alone that the rest of the program reads, in their order."""
    outside = {
        operand for item, values in file.graph.numbered() if file.prepared.isdisjoint(values) for operand in item.operands
    }
    return sorted(file.prepared & outside)


def weights_read(file: ProgramFile) -> list[int]:
    """The inputs that `prepare` takes; the first weight where it computes constants alone."""
    inputs = file.graph.input_values
    read = {
        operand for item, values in file.graph.numbered() if not file.prepared.isdisjoint(values) for operand in item.operands
    }
    return [value for value in inputs if value in read] or [file.first_weight]


def preparation_tables(file: ProgramFile) -> Iterator[str]:
    """The lines of the tables PREPARED (types of prepared values) and WEIGHTS (positions of the weights among the inputs)."""
    if not file.prepared:
        return
    yield from ("", "# what `prepare` computes of the weights, once", "PREPARED = {")
    for value in values_kept(file):
        kind = file.types[value]
        yield f'    "{file.names[value]}": ({kind.shape}, "{kind.dtype}", {file.strides[value]}),'
    places = [file.graph.input_values.index(value) for value in weights_read(file)]
    yield from ("}", f"WEIGHTS = {tuple(places)}  # their places among the inputs", "KEPT = {}")


def preparation_functions(file: ProgramFile) -> Iterator[str]:
    """The lines of `prepare` and `prepared`."""
    if not file.prepared:
        return
    names = [file.names[value] for value in values_kept(file)]
    weights = ", ".join(file.names[value] for value in weights_read(file))
    yield f"def prepare({weights}):"
    yield f'    """{", ".join(names)}: what depends on weights alone."""'
    yield "    import torch"
    yield ""
    yield from file.preparation
    yield f"    return [{', '.join(names)}]\n\n"
    yield _PREPARED


_PREPARED = f'''def prepared(*weights):
    """The results of `prepare`, kept until a weight is another tensor or has changed in place."""
    import torch

    addresses = tuple(each.data_ptr() for each in weights)
    versions = [0 if each.is_inference() else each._version for each in weights]
    kept = KEPT.get(addresses)
    if kept is not None and kept[0] == versions:
        return kept[2]
    results = prepare(*weights)
    if weights[0].is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return results
        torch.cuda.current_stream(weights[0].device).synchronize()
    if len(KEPT) >= {MOST_KEPT}:
        del KEPT[next(iter(KEPT))]
    KEPT[addresses] = versions, weights, results
    return results

'''

__all__ = ["NAMES", "preparation_functions", "preparation_tables", "values_kept", "weights_read"]
