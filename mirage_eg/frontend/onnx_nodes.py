"""A node of ONNX: its names and attributes, and its results by a function of torch."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, helper

from mirage_eg.frontend.onnx_constants import CONSTANTS
from mirage_eg.frontend.onnx_evaluators import operator_name
from mirage_eg.frontend.onnx_older import with_inputs
from mirage_eg.frontend.onnx_ops import OLDER, OPERATORS, RANDOM, WITHOUT_INFLUENCE
from mirage_eg.frontend.onnx_types import ModelTypes, text_of
from mirage_eg.frontend.onnx_values import MisfitError, Operator, Tensor, Value, array, carried, is_ordinary, tensor
from mirage_eg.ir.errors import UnsupportedError

_TORCHS = (RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError)  # raised for operands that torch does not take


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node in its form in the file; the names of the results that nothing reads are empty."""

    source: Any
    attributes: Mapping[str, Any]

    @property
    def op(self) -> str:
        """The operator, with its domain if that is not ONNX's."""
        return operator_name(self.source)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results."""
        return tuple(self.source.output)

    @property
    def is_random(self) -> bool:
        """Whether a second call may give other results."""
        return self.op in RANDOM

    def function(self, types: ModelTypes) -> Operator:
        """The function that computes the node. Raises UnsupportedError: there is none."""
        before, older = OLDER.get(self.op, (0, None))
        found = older if older is not None and types.opset("") < before else OPERATORS.get(self.op) or CONSTANTS.get(self.op)
        if found is None:
            raise UnsupportedError(f"no operator {self.op} is known")
        return found

    def results(self, operands: Sequence[Value], types: ModelTypes) -> list[Value]:
        """The results for these operands by the node's function: known ones of known operands, else tensors.

        Raises UnsupportedError: the function lacks an input or attribute, cannot honour it, or torch does not take the
        operands.
        """
        function = self.function(types)
        on_host = self.op not in CONSTANTS and all(it is None or isinstance(it, np.ndarray) for it in operands)
        if not all(is_ordinary(it) for it in operands if not isinstance(it, np.ndarray)):
            shown = ", ".join(text_of(it) for it in operands if it is not None)
            raise UnsupportedError(f"torch does not compute {self.op} of {shown}")
        given, attributes = with_inputs(self.op, [carried(it) for it in operands], self.attributes)
        bound = self._bound(function, [tensor(it) for it in given] if on_host else given, attributes, types)
        try:
            result = function(*bound.args, **bound.kwargs)
        except UnsupportedError:
            raise
        except _TORCHS as error:
            raise MisfitError("torch has no result for these operands") from error
        found = list(result) if isinstance(result, tuple | list) else [result]
        others = [text_of(it) for it in found if not isinstance(it, np.ndarray) and not is_ordinary(it)]
        if others:
            raise UnsupportedError(f"torch does not compute results of {', '.join(others)}")
        if any(self.outputs[len(found) :]):
            raise UnsupportedError(f"got {len(self.outputs)} results, wanted at most {len(found)}")
        found = found[: len(self.outputs)]
        return [array(it) for it in found] if on_host and not self.is_random else found

    def _bound(
        self, function: Operator, operands: Sequence[Value], attributes: dict[str, Any], types: ModelTypes
    ) -> inspect.BoundArguments:
        """The arguments of the function: without operands left out at the end, and without attributes at their defaults."""
        signature = inspect.signature(function)
        parameters = signature.parameters
        defaults = _defaults(types.schema(self.source))
        idle = {name for name, it in attributes.items() if type(it) is type(defaults.get(name)) and it == defaults.get(name)}
        idle = (idle | WITHOUT_INFLUENCE) - parameters.keys()
        attributes = {name: it for name, it in attributes.items() if name not in idle}
        if "results" in parameters:
            attributes["results"] = len(self.outputs)
        if unknown := sorted(attributes.keys() - parameters.keys()):
            value = attributes[unknown[0]]
            shown = repr(value) if isinstance(value, int | float | str | list) else f"a {type(value).__name__}"
            raise UnsupportedError(f"{unknown[0]} = {shown} is not supported")
        given = list(operands)
        while given and given[-1] is None:
            given.pop()
        try:
            bound = signature.bind(*given, **attributes)
        except TypeError:
            raise UnsupportedError(_misfit(signature, len(given), attributes)) from None
        like = next((it for it in given if it is not None and not isinstance(it, np.ndarray)), None)
        for name, it in bound.arguments.items():
            if parameters[name].annotation is Tensor:
                every = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                bound.arguments[name] = tuple(tensor(one, like) for one in it) if every else tensor(it, like)
        return bound


def _misfit(signature: inspect.Signature, inputs: int, attributes: Mapping[str, Any]) -> str:
    """Why a function does not take so many inputs with these attributes."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    places = [it for it in signature.parameters.values() if it.kind in kinds]
    if inputs > len(places):
        return f"got {inputs} inputs, wanted at most {len(places)}"
    if twice := sorted({it.name for it in places[:inputs]} & attributes.keys()):
        return f"got {twice[0]} as an input and as an attribute"
    missing = [it.name for it in signature.parameters.values() if it.default is inspect.Parameter.empty]
    return f"got {inputs} inputs and the attributes {', '.join(sorted(attributes)) or 'none'}, wanted {', '.join(missing)}"


def _defaults(schema: Any) -> dict[str, Any]:
    given = {} if schema is None else {name: it.default_value for name, it in schema.attributes.items()}
    return {name: _value(it) for name, it in given.items() if it.type != AttributeProto.UNDEFINED}


def _value(attribute: Any) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [it.decode(errors="replace") if isinstance(it, bytes) else it for it in value] if isinstance(value, list) else value


def nodes_of(sources: Sequence[Any]) -> Iterator[OnnxNode]:
    """Nodes in their form in the file, with their attributes read."""
    for source in sources:
        yield OnnxNode(source, {attribute.name: _value(attribute) for attribute in source.attribute})
