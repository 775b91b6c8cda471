"""Reports without what says how long something took or how much memory: what two runs must agree on."""

from typing import Any


def timeless(value: Any) -> Any:
    """Without the seconds and the peak of memory, at every depth."""
    match value:
        case dict():
            return {key: timeless(entry) for key, entry in value.items() if key not in ("seconds", "peak_mib")}
        case list() | tuple():
            return [timeless(entry) for entry in value]
        case _:
            return value
