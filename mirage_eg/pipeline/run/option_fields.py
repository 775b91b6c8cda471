"""Options as fields of a frozen record: each states once its type, its default, its help and the values that it allows.

`check_fields` checks a record's values; the command line takes its options from the same fields (`mirage_eg.cli.options`).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from mirage_eg.ir.errors import OptionError

MOST = 10**9  # of numbers that are no whole ones: more seconds than clocks and solvers take


@dataclass(frozen=True, slots=True)
class Option:
    """A field that is an option: help for the command line, and the values allowed.

    Numbers are at least `least`, and above it where `above`. `flag`, where given, is the option that turns a True field off.
    """

    help: str
    metavar: str | None = None
    least: int | None = None
    above: bool = False
    choices: Collection[str] = ()
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class OptionField:
    name: str
    types: tuple[Any, ...]  # the members of a union
    default: Any
    option: Option


def option_fields(record: type[Any]) -> Iterator[OptionField]:
    """The fields of a record that are annotated with an Option, in their order."""
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        kind, *notes = get_args(hints[field.name]) or (None,)
        for option in notes:
            if isinstance(option, Option):
                types = (kind,) if get_origin(kind) in (None, tuple) else get_args(kind)
                default = None if field.default is MISSING else field.default
                yield OptionField(field.name, types, default, option)


def check_names(what: str, given: Iterable[str], record: type[Any]) -> None:
    """Check names of fields. Raises OptionError: one that the record does not have; the message has the closest one."""
    known = [field.name for field in fields(record)]
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise OptionError(f"{what}: got {name!r}, wanted one of {', '.join(known)}{hint}")


def check_fields(record: Any) -> None:
    """Check numbers, choices and switches. Raises OptionError: a value that is not allowed; the message names the field."""
    for field in option_fields(type(record)):
        name, value, option = field.name, getattr(record, field.name), field.option
        if value is None and NoneType in field.types:
            continue
        if bool in field.types and not isinstance(value, bool):
            raise OptionError(f"{name}: got {value!r}, wanted True or False")
        if option.choices and value not in option.choices:
            raise OptionError(f"{name}: got {value!r}, wanted one of {', '.join(option.choices)}")
        if option.least is None:
            continue
        if float not in field.types:
            check_int(name, value, option.least)
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not option.least <= value <= MOST
            or (option.above and value == option.least)
        ):
            wanted = f"above {option.least}" if option.above else f"of at least {option.least}"
            raise OptionError(f"{name}: got {value!r}, wanted a number {wanted}, and at most {MOST:,}")


def check_int(name: str, value: Any, least: int) -> int:
    """The value, if it is an int of at least `least`; else an OptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: got {value!r}, wanted an int of at least {least}")
    return value
