"""The pass of `causal_flags` for Inductor, which loads no importer for a graph without masks of attention."""

from operator import getitem
from pathlib import Path
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils._python_dispatch import _disable_current_modes

from mirage_eg.torch_compile.records import LOGGER
from mirage_eg.torch_compile.unexpected_errors import reason_of

_MASKS = ("attn_mask", "attn_bias")
_OWN = Path(__file__)
_FILES = (_OWN, _OWN.with_name("causal_flags.py"), _OWN.parent.with_name("frontend") / "known_masks.py")


class CausalFlags(CustomGraphPass):  # type: ignore[misc]
    """The pass, for Inductor: before it looks at a graph, and before segments are found in it.

    `entry`: the name by which torch's caches keep code apart. A second process tunes kernels again under `cache_key_tag`,
    torch's own name: the workers that compile kernels do not have it.
    """

    def __init__(self, entry: str = "") -> None:
        super().__init__()
        self.entry = entry

    def __call__(self, graph: Any) -> None:
        try:
            arguments = [(node, _arguments(node)) for node in graph.nodes]
            masked = [(node, given, name) for node, given in arguments if (name := _mask(node, given))]
            if not masked:
                return
            from mirage_eg.torch_compile.causal_flags import set_causal_flags  # loads the importer

            with _disable_current_modes():  # values of constants are numbers
                set_causal_flags(graph, masked)
        except Exception as error:  # noqa: BLE001 - a model that torch compiles must not fail here; masks stay as they are
            LOGGER.warning("masks of attention stay as they are: %s", reason_of(error))

    def uuid(self) -> Any:
        """What torch's caches know the pass by."""
        return get_hash_for_files(tuple(map(str, _FILES)), self.entry)


def _arguments(node: Any) -> dict[str, Any]:
    """The arguments of an attention by their names; none of another node, as of one of a backward pass."""
    name = str(node.target)
    if not name.startswith(("aten.scaled_dot_product_", "aten._scaled_dot_product_")) or "_backward" in name:
        return {}
    arguments = node.target._schema.arguments
    return {each.name: value for each, value in zip(arguments, node.args, strict=False)} | dict(node.kwargs)


def _mask(node: Any, given: dict[str, Any]) -> str:
    """The name of the mask of an attention; "" if it has none, or has the flag, or is read for a gradient."""
    forward = "query" in given and all(it.target is not getitem or it.args[1] == 0 or not it.users for it in node.users)
    names = [name for name in _MASKS if given.get(name) is not None and forward and not given.get("is_causal", False)]
    return names[0] if names else ""
