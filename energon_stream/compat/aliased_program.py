"""Runs a program that is written for ``megatron.energon`` with this library in its place::

    python -m energon_stream.run_megatron train.py ARGUMENTS
    python -m energon_stream.run_megatron -m package.train ARGUMENTS
    torchrun --nproc-per-node 8 -m energon_stream.run_megatron train.py ARGUMENTS

Options come before the program. ``--states FOLDER`` names the folder of its checkpoints, so that it goes on
with another number of data-parallel ranks. ``--shadow`` hides an installed Megatron-Energon. ``--path``
prints a folder; with that folder in ``PYTHONPATH``, any Python program gets this library as
``megatron.energon``.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from energon_stream.compat.alias import ON_PATH, install_alias
from energon_stream.errors import AliasError
from energon_stream.worker_fields import STREAMS_VARIABLE

STATES_VARIABLE = "ENERGON_STREAM_STATES"
"""Environment variable: folders of checkpoints, separated as in ``PATH``; see ``rank_files``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program that the arguments name, as ``__main__`` and with the rest of the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m energon_stream.run_megatron",
        description="Run a program with energon_stream as megatron.energon.",
    )
    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="the program is a module, as for python -m"
    )
    parser.add_argument("--shadow", action="store_true", help="hide an installed Megatron-Energon")
    parser.add_argument(
        "--states",
        metavar="FOLDER",
        help="checkpoints of the program, whose loader states are dealt to the ranks that there are now; a "
        "new job gets a number of streams that many numbers of ranks divide",
    )
    parser.add_argument(
        "--path", action="store_true", help="print a folder for PYTHONPATH, and do nothing else"
    )
    parser.add_argument("program", nargs="?", help="a file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    options = parser.parse_args(arguments)
    if options.path:
        sys.stdout.write(f"{ON_PATH}\n")
        return
    if options.program is None:
        parser.error("name the program to run")
    if not options.is_module and not os.path.exists(options.program):
        parser.error(f"the file {options.program} does not exist")
    if options.states is not None:
        os.environ[STATES_VARIABLE] = os.path.abspath(options.states)  # children get it, too
        os.environ.setdefault(STREAMS_VARIABLE, "auto")  # for a job that begins
    try:
        install_alias(shadow=options.shadow)
    except AliasError as error:
        parser.error(str(error))
    sys.argv = [options.program, *options.arguments]
    if options.is_module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        # Python put the working directory there. A program that is a file gets its own folder instead.
        sys.path[0] = os.path.dirname(os.path.realpath(options.program))
    runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
