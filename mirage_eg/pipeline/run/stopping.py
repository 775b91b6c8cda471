"""How the command is stopped: Ctrl-C and SIGTERM are exceptions that end it with one line; imports nothing that takes time."""

import signal
import sys
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143  # the exit codes of Ctrl-C and of SIGTERM
_AGAIN_SECONDS = 1.0  # a finalizer, an import or a callback of a library may swallow the exception: it is raised again
_received: list[int] = []  # signals, since typer drops which one it was


def handle_signals() -> None:
    """From now on SIGINT and SIGTERM raise KeyboardInterrupt until `end_stopped`; an ignored SIGINT stays ignored."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGALRM, _stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt after a signal, even if a library swallowed the first exception."""
    if _received:
        raise KeyboardInterrupt


def _stop(number: int, frame: object) -> NoReturn:
    if number != signal.SIGALRM:
        _received.append(number)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    raise KeyboardInterrupt


def end_stopped(message: str = "") -> NoReturn:
    """End with one line, `message` or what happened, and the exit code of the signal."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    code, word = (TERMINATED, "terminated") if signal.SIGTERM in _received else (INTERRUPTED, "interrupted")
    print(f"mirage-eg: {' '.join(message.split()) or word}", file=sys.stderr)
    sys.exit(code)
