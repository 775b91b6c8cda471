"""How the command is stopped: Ctrl-C and SIGTERM are exceptions that end it with one line; imports nothing that takes time."""

import signal
import sys
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143  # the exit codes of Ctrl-C and of SIGTERM
_received: list[
    int
] = []  # signals: an import or a callback of some library may swallow the exception, typer drops which it was


def handle_signals() -> None:
    """From now on SIGINT and SIGTERM raise KeyboardInterrupt and are remembered; an ignored SIGINT stays ignored."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt where a signal came, whatever became of its first exception."""
    if _received:
        raise KeyboardInterrupt


def _stop(number: int, frame: object) -> NoReturn:
    _received.append(number)
    raise KeyboardInterrupt


def end_stopped(message: str = "") -> NoReturn:
    """End with one line, `message` or what happened, and the exit code of the signal."""
    code, word = (TERMINATED, "terminated") if signal.SIGTERM in _received else (INTERRUPTED, "interrupted")
    print(f"mirage-eg: {' '.join(message.split()) or word}", file=sys.stderr)
    sys.exit(code)


__all__ = ["INTERRUPTED", "TERMINATED", "end_stopped", "handle_signals", "raise_if_stopped"]
