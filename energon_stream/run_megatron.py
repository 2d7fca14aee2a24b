"""``python -m energon_stream.run_megatron``; see :mod:`energon_stream.compat.run_megatron`."""

from energon_stream.compat.run_megatron import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
