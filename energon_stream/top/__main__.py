"""``python -m energon_stream.top``: the command ``energon-stream top``."""

import sys

from energon_stream.cli.main import main

if __name__ == "__main__":
    main(["top", *sys.argv[1:]], prog_name="energon-stream")
