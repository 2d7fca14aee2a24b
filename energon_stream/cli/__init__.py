"""The ``energon-stream`` command; one module for each subcommand."""

import sys


def run() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while modules are imported."""
    try:
        from energon_stream.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(130)
