"""Records as values of JSON."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.user_cost import UserCost


def plain(value: Any) -> Any:
    """The value in JSON's types; NaN and infinities, which JSON lacks, become null; the field `pass_` has the key `pass`.
    A user's cost is its name.

    Raises TypeError: JSON has no form for the value.
    """
    match value:
        case float():
            return value if isfinite(value) else None
        case Enum():
            return value.value
        case None | bool() | int():
            return value
        case str() | Path() | Fraction():
            return str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [plain(entry) for entry in value]
        case UserCost():
            return value.name
        case _ if is_dataclass(value):
            return {field.name.removesuffix("_"): plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            raise TypeError(f"got {value!r}, which JSON cannot hold")
