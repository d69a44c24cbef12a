"""The command line: ``tokkata …``, or ``python -m tokkata …``."""

import signal
import sys

from tokkata._tokkata import run_command


def main() -> int:
    """Runs the command line with this process's arguments; gives its exit status."""
    # The command hears signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["tokkata", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
