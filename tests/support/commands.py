"""The commands, as click knows them."""

import click

from energon_stream.cli.main import main


def leaves(command=main, names=()):
    """Yield all commands that do something, by their names."""
    if not isinstance(command, click.Group):
        yield names, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*names, name))
