"""Frozen records of this package as JSON and back, exactly: what checkpoints hold.

JSON has no tuples, sets, fractions, enums or records; each is encoded as an object with one key that no other value has. Only
dataclasses and enums of this package are made again.
"""

import builtins
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import sys
import types
import typing
from collections import abc
from enum import Enum
from fractions import Fraction
from functools import cache
from typing import Any, get_args, get_origin

from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import graph_of, to_data

_PACKAGE = "mirage_eg."
Coder = Any  # what JSON can hold


class CodecError(MirageError):
    """Data that no value of this package was written as."""


def dumps(value: Any) -> str:
    """The value as one line of JSON; equal values give equal lines."""
    return json.dumps(encode(value), ensure_ascii=False, separators=(",", ":"))


def encode(value: Any) -> Coder:
    """The value in JSON's types. Raises TypeError: a value of another kind; that is a mistake in this package."""
    match value:
        case Enum():
            return {"enum": [_name(type(value)), value.value]}
        case None | bool() | int() | str():
            return value
        case float():
            return float(value)  # without NumPy's subclass
        case tuple():
            return {"tuple": [encode(entry) for entry in value]}
        case list():
            return [encode(entry) for entry in value]
        case dict():
            return {"dict": [[encode(key), encode(entry)] for key, entry in value.items()]}
        case frozenset():
            return {"set": sorted((encode(entry) for entry in value), key=lambda entry: json.dumps(entry, sort_keys=True))}
        case Fraction():
            return {"fraction": [value.numerator, value.denominator]}
        case Graph():
            return {"graph": to_data(value)}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
            return {"record": [_name(type(value)), *fields]}
        case _:
            raise TypeError(f"got {value!r}, wanted a frozen record of mirage_eg or what it may hold")


_TOO_DEEP = "nested too deeply"


def decode(data: Coder) -> Any:
    """The value that was encoded; fields of records are of their annotated types, and graphs keep the rules of their ops.

    Raises CodecError: `data` is no encoded value, or its records have other fields now.
    """
    try:
        return _decoded(data)
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None


def fields_of(data: Coder, kind: type) -> dict[str, Coder]:
    """The encoded fields of an encoded record of a kind.

    Raises CodecError: `data` is no such record, or has other fields now.
    """
    match data:
        case {"record": [name, *entries]} if name == _name(kind) and len(entries) == len(names := _field_names(kind)):
            return dict(zip(names, entries, strict=True))
    raise CodecError(f"got {_shown(data)}, wanted an encoded {kind.__name__}")


def _decoded(data: Coder) -> Any:
    if data is None or isinstance(data, str | int | float):
        return data
    if isinstance(data, list):
        return [_decoded(entry) for entry in data]
    match [*data.items()] if isinstance(data, dict) else data:
        case [("record", [str(name), *entries])]:
            kind = _kind(name)
            if dataclasses.is_dataclass(kind) and len(entries) == len(names := _field_names(kind)):
                return _record(kind, {name: _decoded(entry) for name, entry in zip(names, entries, strict=True)})
        case [("tuple", list(entries))]:
            return tuple([_decoded(entry) for entry in entries])
        case [("graph", graph)]:
            return _graph(graph)
        case [("enum", [str(name), value])]:
            kind = _kind(name)
            if issubclass(kind, Enum) and value in [member.value for member in kind]:
                return kind(value)
        case [("dict", list(pairs))] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {_hashable(_decoded(key)): _decoded(entry) for key, entry in pairs}
        case [("fraction", [int(numerator), int(denominator)])] if denominator:
            return Fraction(numerator, denominator)
        case [("set", list(entries))]:
            return frozenset([_hashable(_decoded(entry)) for entry in entries])
    raise CodecError(f"got {_shown(data)}, wanted an encoded value")


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _graph(data: Coder) -> Graph:
    try:
        return graph_of(data)
    except GraphError as error:
        raise CodecError(str(error)) from None


def _record(kind: type, values: dict[str, Any]) -> Any:
    hints = _hints(kind)
    for name, value in values.items():
        if not conforms(value, hints[name]):
            raise CodecError(f"{kind.__name__}.{name}: got {_shown(value)}, wanted {_named(hints[name])}")
    try:
        return kind(**values)
    except MirageError as error:  # of a record that checks its fields
        raise CodecError(f"{kind.__name__}: {error}") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise CodecError(
            f"got {_shown(value)} as an entry of a set, or as a name, wanted something that does not change"
        ) from None
    return value


def _shown(value: Any) -> str:
    """A value in a few characters."""
    return repr(value)[:80] if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; the entries of tuples, lists, sets and mappings are looked at, too.

    Fields of records are not: `decode` has looked at them.
    """
    origin, arguments = _parts(hint)
    match origin:
        case types.UnionType | typing.Union:
            return any(conforms(value, argument) for argument in arguments)
        case typing.Literal:
            return any(value == each and type(value) is type(each) for each in arguments)
        case builtins.tuple if arguments[1:] != (...,):
            entries = isinstance(value, tuple) and len(value) == len(arguments)
            return entries and all(map(conforms, value, arguments))
        case None:
            return _is_of(value, hint)
        case kind if not isinstance(value, kind):
            return False
        case kind if issubclass(kind, abc.Mapping):
            return all(conforms(key, arguments[0]) and conforms(entry, arguments[1]) for key, entry in value.items())
        case kind if issubclass(kind, abc.Collection):
            return all(conforms(entry, arguments[0]) for entry in value)
        case _:
            return True


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type without arguments; a whole number is a float, too, and true and false are no numbers."""
    if kind is Any or kind is object:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, type(None) if kind is None else kind)


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"got a {kind.__name__} of {kind.__module__}, wanted a type of mirage_eg")
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _has_types(module: str) -> bool:
    """Whether there is such a module, which may be imported: the one that runs the command line has no types."""
    words = module.split(".")
    if not all(word.isidentifier() and not word.startswith("__") for word in words):
        return False
    with contextlib.suppress(ModuleNotFoundError):  # of its package
        return module in sys.modules or importlib.util.find_spec(module) is not None
    return False


@cache
def _kind(name: str) -> type:
    module, _, attribute = name.partition(":")
    if module.startswith(_PACKAGE) and attribute.isidentifier() and _has_types(module):
        kind = getattr(importlib.import_module(module), attribute, None)
        if isinstance(kind, type):
            return kind
    raise CodecError(f"got a record of type {name[:80]!r}, which mirage_eg does not have")
