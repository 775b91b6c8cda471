"""Nodes that stand for other nodes: operators of ONNX that are functions, and `If` of which one branch is known to run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from mirage_eg.frontend.onnx_barriers import reads
from mirage_eg.frontend.onnx_types import DOMAINS, ModelTypes, type_of
from mirage_eg.frontend.onnx_values import Value


def body_of(node: Any, values: Mapping[str, Value], types: ModelTypes, prefix: str) -> list[Any]:
    """The nodes of ONNX's definition of an operator as a function, with other names inside; none if it is no function."""
    schema, version = types.schema(node), types.opset(node.domain)
    if schema is None:
        return []
    if fitting := _up_to(version, schema.function_opset_versions):
        text = schema.get_function_with_opset_version(max(fitting))
    elif fitting := _up_to(version, schema.context_dependent_function_opset_versions):
        kinds = [(type_of(values[name]) if name else onnx.TypeProto()).SerializeToString() for name in node.input]
        text = schema.get_context_dependent_function_with_opset_version(max(fitting), node.SerializeToString(), kinds)
    else:
        return []
    function = onnx.FunctionProto.FromString(text) if isinstance(text, bytes) else text
    own = {it.name: it for it in node.attribute}
    defaults = {name: it.default_value for name, it in schema.attributes.items() if it.default_value.type}
    defaults |= {it.name: it for it in function.attribute_proto}
    given = [*node.input, *[""] * (len(function.input) - len(node.input))]
    outer = dict(zip(function.input, given, strict=False)) | {
        inner: name for inner, name in zip(function.output, node.output, strict=False) if name
    }
    nodes = [_renamed(it, _Names(outer, prefix), defaults | own) for it in function.node]
    return with_readers(nodes, [name for name in node.output if name])


def _up_to(newest: int, versions: Sequence[int]) -> list[int]:
    return [it for it in versions if it <= newest]


def branch_of(node: Any, condition: Value, prefix: str) -> tuple[list[Any], dict[str, Any]]:
    """The nodes and the initializers of the branch of an `If` that runs, with other names inside."""
    wanted = "then_branch" if np.asarray(condition).item() else "else_branch"
    [graph] = [it.g for it in node.attribute if it.name == wanted]
    made = {name for it in graph.node for name in it.output} | {it.name for it in graph.initializer}
    inside = {name: f"{prefix}{name}" for name in made if name}
    names = _Names(inside, "", keeps=True)
    known = {inside[it.name]: numpy_helper.to_array(it) for it in graph.initializer}
    pairs = zip(graph.output, node.output, strict=True)
    ends = [helper.make_node("Identity", [names.of(it.name)], [name]) for it, name in pairs if name]
    return with_readers([*(_renamed(it, names, None) for it in graph.node), *ends], [it for it in node.output if it]), known


class _Names:
    """New names of the values of a body: those in `given`, and for others the prefix, or none if it `keeps` them."""

    def __init__(
        self, given: Mapping[str, str], prefix: str, *, keeps: bool = False, local: frozenset[str] = frozenset()
    ) -> None:
        self.given, self.prefix, self.keeps, self.local = given, prefix, keeps, local

    def of(self, name: str) -> str:
        """The new name of a value."""
        if not name or name in self.local:
            return name
        return self.given.get(name, name if self.keeps else f"{self.prefix}{name}")

    def within(self, local: Iterable[str]) -> "_Names":
        """The names in a graph of an attribute, whose own values keep theirs."""
        return _Names(self.given, self.prefix, keeps=self.keeps, local=self.local | frozenset(local))


def _renamed(node: Any, names: _Names, attributes: Mapping[str, Any] | None) -> Any:
    """A copy of a node with other names; `attributes` are those of the function's call, to which its own may refer."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.ClearField("attribute")
    made.input[:] = [names.of(name) for name in node.input]
    made.output[:] = [names.of(name) for name in node.output]
    for attribute in node.attribute:
        own = onnx.AttributeProto()
        own.CopyFrom(attribute)
        if attribute.ref_attr_name and attributes is not None:
            if attribute.ref_attr_name not in attributes:
                continue
            own.CopyFrom(attributes[attribute.ref_attr_name])
            own.name = attribute.name
        for graph in (own.g, *own.graphs) if own.HasField("g") or own.graphs else ():
            local = {it.name for it in (*graph.input, *graph.initializer)} | {it for one in graph.node for it in one.output}
            inner = names.within(local)
            nodes = [_renamed(it, inner, attributes) for it in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
            for result in graph.output:
                result.name = inner.of(result.name)
        made.attribute.append(own)
    return made


def with_readers(nodes: Sequence[Any], outputs: Iterable[str]) -> list[Any]:
    """The nodes that the outputs depend on, in order; the name of an optional result that nothing reads is empty."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            made = onnx.NodeProto()
            made.CopyFrom(node)
            optional = _optional_results(node)
            made.output[:] = [name if name in needed or place not in optional else "" for place, name in enumerate(node.output)]
            kept.append(made)
            needed.update(reads(node))
    return kept[::-1]


def _optional_results(node: Any) -> frozenset[int]:
    """The places of the results that a node may leave out."""
    domain = "" if node.domain in DOMAINS else node.domain
    if not defs.has(node.op_type, domain):
        return frozenset()
    results = defs.get_schema(node.op_type, domain).outputs
    kinds = [results[min(place, len(results) - 1)].option for place in range(len(node.output))]
    return frozenset(place for place, kind in enumerate(kinds) if kind == defs.OpSchema.FormalParameterOption.Optional)
