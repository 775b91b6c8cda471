"""Frozen records of this package as JSON and back, exactly: what checkpoints hold.

JSON has no tuples, sets, fractions, enums or records; each is encoded as an object with one key that no other value has. Only
dataclasses and enums of this package are made again.
"""

import builtins
import dataclasses
import importlib
import json
import types
import typing
from enum import Enum
from fractions import Fraction
from typing import Any, get_args, get_origin

from mirage_eg.ir.errors import MirageError

_PACKAGE = "mirage_eg."
Coder = Any  # what JSON can hold


class CodecError(MirageError):
    """Data that no value of this package was written as."""


def dumps(value: Any) -> str:
    """The value as one line of JSON; equal values give equal lines."""
    return json.dumps(encode(value), ensure_ascii=False, separators=(",", ":"))


def encode(value: Any) -> Coder:
    """The value in JSON's types.

    Raises:
        TypeError: a value of another kind; that is a mistake in this package.
    """
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
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
            return {"record": [_name(type(value)), *fields]}
        case _:
            raise TypeError(f"got {value!r}, wanted a frozen record of mirage_eg or what it may hold")


def decode(data: Coder) -> Any:
    """The value that was encoded.

    Raises:
        CodecError: `data` is no encoded value, or its records have other fields now.
    """
    match data:
        case None | bool() | int() | float() | str():
            return data
        case list():
            return [decode(entry) for entry in data]
        case {"tuple": list(entries), **rest} if not rest:
            return tuple(decode(entry) for entry in entries)
        case {"set": list(entries), **rest} if not rest:
            return frozenset(decode(entry) for entry in entries)
        case {"dict": list(pairs), **rest} if not rest and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {decode(key): decode(entry) for key, entry in pairs}
        case {"fraction": [int(numerator), int(denominator)], **rest} if not rest and denominator:
            return Fraction(numerator, denominator)
        case {"enum": [str(name), value], **rest} if not rest:
            kind = _kind(name)
            if issubclass(kind, Enum) and value in {member.value for member in kind}:
                return kind(value)
        case {"record": [str(name), *entries], **rest} if not rest:
            kind = _kind(name)
            if dataclasses.is_dataclass(kind) and len(entries) == len(fields := dataclasses.fields(kind)):
                return kind(**{field.name: decode(entry) for field, entry in zip(fields, entries, strict=True)})
    raise CodecError(f"got {json.dumps(data, ensure_ascii=False)[:80]}, wanted an encoded value")


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; the entries of tuples and lists are looked at, the fields of records are not."""
    arguments = get_args(hint)
    match get_origin(hint):
        case types.UnionType | typing.Union:
            return any(conforms(value, argument) for argument in arguments)
        case builtins.tuple if arguments[1:] != (...,):
            entries = isinstance(value, tuple) and len(value) == len(arguments)
            return entries and all(map(conforms, value, arguments))
        case builtins.tuple | builtins.list as kind:
            return isinstance(value, kind) and all(conforms(entry, arguments[0]) for entry in value)
        case None:
            return hint is Any or isinstance(value, type(None) if hint is None else hint)
        case kind:
            return isinstance(value, kind)


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"got a {kind.__name__} of {kind.__module__}, wanted a type of mirage_eg")
    return f"{kind.__module__}:{kind.__qualname__}"


def _kind(name: str) -> type:
    module, _, attribute = name.partition(":")
    if module.startswith(_PACKAGE) and attribute.isidentifier():
        try:
            kind = getattr(importlib.import_module(module), attribute, None)
        except ModuleNotFoundError:
            kind = None
        if isinstance(kind, type):
            return kind
    raise CodecError(f"got a record of type {name[:80]!r}, which mirage_eg does not have")
