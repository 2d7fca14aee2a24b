"""Run a program that is written for ``megatron.energon`` with this library in its place.

See :mod:`energon_stream.compat.run_megatron`.
"""

from energon_stream.compat.run_megatron import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
