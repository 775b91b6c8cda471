"""The command `mirage-eg`, also as `python -m mirage_eg`: stopped with one line from the first import to the last."""

import atexit
import os
import signal
import sys
from typing import NoReturn

from mirage_eg.pipeline.run.stopping import INTERRUPTED, TERMINATED, end_stopped, handle_signals, raise_if_stopped


def main() -> NoReturn:
    """Run the command line."""
    try:
        try:
            handle_signals()
            from mirage_eg.cli.main import main as run

            raise_if_stopped()
            run()
        except KeyboardInterrupt as stop:
            end_stopped(str(stop))
    except SystemExit as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but what Python does at its end
        if end.code in (INTERRUPTED, TERMINATED):
            atexit._run_exitfuncs()  # loky gives back its semaphores
            sys.stderr.flush()
            os._exit(end.code)  # Python ends by SIGINT where an interrupt came in code that is compiled from a string
        raise


if __name__ == "__main__":
    main()
