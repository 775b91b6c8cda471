"""Attention of torch with a mask that a model computes of shapes: `is_causal` where the mask is the causal one, none where all
scores count.

Torch's kernels skip masked keys for the flag alone, so that this serves all nodes, also those outside segments. A mask of
numbers on the host is compared entry by entry; one that depends on an argument, a parameter or a buffer stays.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import torch

from mirage_eg.backends.triton.attention_call import ROWS_OF_CUDNN, SAFE_CUDNN
from mirage_eg.frontend.fx_partition import Place, equal_constants
from mirage_eg.frontend.fx_values import LITERALS, Fx, HostValues, attribute_of, numpy_of
from mirage_eg.frontend.known_masks import HIDDEN_BY_CUDNN, counting_scores


def set_causal_flags(graph: Any, masked: Sequence[tuple[Fx, Mapping[str, Any], str]]) -> None:
    """Set the flags of those attentions of a functional graph whose masks are known; masks that nothing reads then are gone.

    `masked`: attentions with their arguments, and the name of the mask's.
    """
    literals = [node for node in graph.nodes if node.op == "get_attr" and str(node.target).startswith(LITERALS)]
    found = equal_constants(graph, {node.name: Place.CONSTANT for node in literals})
    state = {node.name: attribute_of(node) for node in literals}
    kinds: dict[tuple[Fx, int, int, float], tuple[bool, bool]] = {}
    for node, given, name in masked:
        mask = _before_expansions(given[name], found.same)
        rows, columns = (given[each].meta["val"].shape[-2] for each in ("query", "key"))
        if found.place.get(mask) is not Place.CONSTANT or not (type(rows) is type(columns) is int):
            continue
        hidden = HIDDEN_BY_CUDNN if _is_of_cudnn(node) else -inf
        if (key := (mask, rows, columns, hidden)) not in kinds:
            kinds[key] = _kind(numpy_of(HostValues(state, found.same)[mask]), rows, columns, hidden)
        is_causal, shows_all = kinds[key]
        if (is_causal or shows_all) and not _may_be_wrong(node, rows):
            _set(node, {name: None, "is_causal": is_causal and not shows_all})
    graph.eliminate_dead_code()


def _may_be_wrong(node: Fx, rows: int) -> bool:
    """Whether an older cuDNN may compute a part of a tile wrong: such an attention stays as torch has it."""
    return _is_of_cudnn(node) and rows % ROWS_OF_CUDNN != 0 and (torch.backends.cudnn.version() or 0) < SAFE_CUDNN


def _is_of_cudnn(node: Fx) -> bool:
    return "_cudnn_" in str(node.target)


def _before_expansions(mask: Fx, same: dict[Fx, Fx]) -> Fx:
    mask = same.get(mask, mask)
    while str(mask.target) == "aten.expand.default":
        mask = same.get(mask.args[0], mask.args[0])
    return mask


def _kind(mask: Any, rows: int, columns: int, hidden: float) -> tuple[bool, bool]:
    """Whether a mask is the causal one of a square, and whether it shows all scores."""
    counts = counting_scores(mask, rows, columns, hidden) if mask.ndim >= 2 else None
    if counts is None:
        return False, False
    return rows == columns and np.array_equal(counts, np.tri(rows, columns, dtype=bool)), bool(counts.all())


def _set(node: Fx, values: dict[str, Any]) -> None:
    """Set arguments by their names."""
    names = [each.name for each in node.target._schema.arguments][: len(node.args)]
    node.args = tuple(values.get(name, value) for name, value in zip(names, node.args, strict=True))
    node.kwargs = dict(node.kwargs) | {name: value for name, value in values.items() if name not in names}
