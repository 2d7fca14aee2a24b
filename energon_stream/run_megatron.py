"""``python -m energon_stream.run_megatron``; see :mod:`energon_stream.compat.aliased_program`."""

from energon_stream.compat.aliased_program import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
