"""``python -m energon_stream.simulate``: the command ``energon-stream simulate``."""

import sys

from energon_stream.cli.main import main

if __name__ == "__main__":
    main(["simulate", *sys.argv[1:]], prog_name="energon-stream")
