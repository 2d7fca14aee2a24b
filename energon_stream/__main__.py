"""``python -m energon_stream``: the command ``energon-stream``."""

from energon_stream.cli import run

if __name__ == "__main__":
    run()
