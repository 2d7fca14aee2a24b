"""``energon-stream completion``: scripts with which shells complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from energon_stream.cli.options import json_option
from energon_stream.cli.terminal import emit

_NAME = "energon-stream"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str) -> None:
    """Print a script that completes commands and options, for a shell's start-up file.

    For bash 4.4 or newer, put eval "$(energon-stream completion bash)" into ~/.bashrc; for zsh, the same with
    zsh into ~/.zshrc, after compinit. For fish, write the script to
    ~/.config/fish/completions/energon-stream.fish.
    """
    found = get_completion_class(shell)
    if found is None:  # the choices are those that click has
        raise click.UsageError(f"{shell} is not supported")
    command = click.get_current_context().find_root().command
    script = found(command, {}, _NAME, "_ENERGON_STREAM_COMPLETE").source()
    emit({"shell": shell, "script": script}, lambda: click.echo(script))
