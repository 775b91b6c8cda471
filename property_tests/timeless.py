"""Reports without what says how long something took: what two runs must agree on."""

from typing import Any


def timeless(value: Any) -> Any:
    """Without the seconds, at every depth."""
    match value:
        case dict():
            return {key: timeless(entry) for key, entry in value.items() if key != "seconds"}
        case list() | tuple():
            return [timeless(entry) for entry in value]
        case _:
            return value
