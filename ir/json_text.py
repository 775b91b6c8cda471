"""JSON that others wrote: every fault is one error of one line."""

import json
from collections import Counter
from typing import Any, NoReturn

from mirage_eg.ir.errors import JsonError


def parse_json(text: str | bytes, infinities: bool = False) -> Any:
    """The value of a JSON text; with `infinities` also Infinity and NaN, as Python writes them.

    Raises JsonError: not UTF-8, not JSON, nested too deeply, or with a field twice in one object.
    """
    refuse = None if infinities else _refuse_constant
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except JsonError:
        raise
    except ValueError as error:  # an integer of more than 4,300 digits
        raise JsonError(f"not JSON that can be read: {str(error).split(';')[0]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        shown = json.dumps(twice, ensure_ascii=not twice.isprintable())
        raise JsonError(f"field {shown if len(shown) <= 60 else shown[:57] + '…'} occurs twice in one object")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"got {name}, which is no JSON number")
