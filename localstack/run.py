"""Install LocalStack into an environment of its own and run it on 127.0.0.1, without Docker.

Its pins fit no other environment, so it gets `.venv-localstack` at the root of the checkout.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements-py311.lock"
VENV = HERE.parent / ".venv-localstack"


def install() -> Path:
    """Make the environment if it is missing or older than the lock; returns its interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / "installed.lock"
    if stamp.is_file() and stamp.read_bytes() == LOCK.read_bytes():
        return python
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, VENV],
            [uv, "pip", "install", "--quiet", "--python", python, "-r", LOCK],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", "--clear", VENV],
            [python, "-m", "pip", "install", "--quiet", "-r", LOCK],
        ]
    for command in commands:
        subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    shutil.copyfile(LOCK, stamp)
    return python


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=4566, help="0 takes a free port")
    parser.add_argument("--install-only", action="store_true", help="print the interpreter's path and stop")
    options = parser.parse_args()
    python = install()
    if options.install_only:
        print(python)
        return
    from energon_stream.testing.servers import LocalStack

    # Blocked before the server starts, so that it cannot be left behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with LocalStack(python, port=options.port) as server:
        print(f"LocalStack answers at {server.endpoint_url}; stop it with Ctrl-C", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
