"""A writer of mirage-project/mirage's checkpoint format, so that its reader is tested on files of any shape."""

from typing import Any

from mirage_eg.frontend.mirage_json import DTYPES
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.ops import Level

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_ACCUMULATORS = {
    ("accum_sum", False): "accum_nored",
    ("accum_max", False): "accum_max",
    ("accum_sum", True): "accum_red_ld_sum",
    ("accum_mean", True): "accum_red_ld_mean",
    ("accum_rms", True): "accum_red_ld_rms",
}


def write(*graphs: Graph, older: bool = False) -> list[Any]:
    """The checkpoint of some µGraphs whose grids have three dims; `older` spells accumulators without forloop_."""
    return [_kernel_graph(graph, older) for graph in graphs]


def _tensor(kind: TensorType, guid: int) -> dict[str, Any]:
    dims = [*kind.shape, *[0] * (4 - len(kind.shape))]
    return {"data_type": _NUMBERS[kind.dtype], "dim": dims, "guid": guid, "num_dims": len(kind.shape), "layout": "DmemRowMajor"}


def _xyz(values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip("xyz", values, strict=True))


def _kernel_graph(graph: Graph, older: bool) -> list[Any]:
    operators = []
    for item, values in graph.numbered():
        record: dict[str, Any] = {
            "op_type": f"kn_{'customized' if item.op == 'block' else _name(item)}_op",
            "input_tensors": [_tensor(graph.types[i], 1000 + i) for i in item.operands],
            "output_tensors": [_tensor(graph.types[i], 1000 + i) for i in values],
        }
        if item.op == "block":
            loaded, stored = [1000 + i for i in item.operands], [1000 + i for i in values]
            record["bgraph"] = _block_graph(item["graph"], loaded, stored, older)
        operators.append(record)
    return operators


def _block_graph(graph: Graph, loaded: list[int], stored: list[int], older: bool) -> dict[str, Any]:
    assert graph.level is Level.BLOCK
    inputs, outputs = iter(zip(graph.input_types, loaded, strict=True)), iter(zip(graph.output_types, stored, strict=True))
    operators, columns = [], 64
    for item, values in graph.numbered():
        record: dict[str, Any] = {
            "op_type": f"tb_{_block_name(item, graph, older)}_op",
            "input_tensors": [_tensor(graph.types[i], 2000 + i) for i in item.operands],
            "output_tensors": [_tensor(graph.types[i], 2000 + i) for i in values],
        }
        match item.op:
            case "input":
                record |= {"dtensor": _tensor(*next(inputs)), "input_map": _xyz(item["imap"]), "forloop_dim": item["fmap"]}
            case "output":
                record |= {"dtensor": _tensor(*next(outputs)), "output_map": _xyz(item["omap"])}
            case "accum_strided_sum":
                columns = item["columns"]
        operators.append(record)
    return {
        "block_dim": {"x": graph.threads, "y": 1, "z": 1},
        "forloop_range": graph.loop,
        "grid_dim": _xyz(graph.grid),
        "reduction_dimx": columns,
        "operators": operators,
    }


def _block_name(item: Node, graph: Graph, older: bool) -> str:
    forloop = "" if older else "forloop_"
    if item.op == "accum_strided_sum":
        return f"{forloop}accum_redtox_ld_sum"
    if item.op.startswith("accum_"):
        dim = item.get("dim")
        assert dim in (None, len(graph.types[item.operands[0]].shape) - 1)
        return forloop + _ACCUMULATORS[item.op, dim is not None]
    return _name(item)


def _name(item: Node) -> str:
    return f"reduction_{item['dim']}" if item.op == "sum" else item.op
