"""The words of the commands, which ``words.toml`` lists: sections, texts of options, other spellings."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import click

from energon_stream.logs import deprecation

WORDS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)

_IN_MIB = "--request-mib"
"""An older option whose numbers were mebibytes; those of its successor have units."""


def text_of(option: str, command: str) -> str:
    """Return the text of an option of a command."""
    found: str | dict[str, str] = WORDS["options"][option]
    return found if isinstance(found, str) else found.get(command, found.get("any", ""))


def in_words(name: str, args: list[str], quiet: bool) -> list[str]:
    """Return the arguments of a command in its own words; notes say so on standard error unless ``quiet``."""
    old, found = WORDS["old"].get(name, {}), list(args)
    words, noted = {**old, **WORDS["energon"].get(name, {})}, set()
    for number, arg in enumerate(args[: args.index("--") if "--" in args else None]):
        option, equals, value = arg.partition("=")
        if option not in words:
            continue
        if option in old and option not in noted and not quiet:
            noted.add(option)
            click.echo(f"Note: {deprecation(option, words[option])}.", err=True)
        found[number] = f"{words[option]}{equals}{_in_mib(value) if option == _IN_MIB else value}"
        if option == _IN_MIB and not equals and number + 1 < len(args):
            found[number + 1] = _in_mib(args[number + 1])
    return found


def _in_mib(numbers: str) -> str:
    return ",".join(f"{number}MiB" for number in numbers.split(",")) if numbers else ""


def with_names_of_energon(name: str, command: click.Command) -> click.Command:
    """Return a command whose options have Megatron-Energon's spellings, too."""
    names = {word: theirs for theirs, word in WORDS["energon"].get(name, {}).items()}
    changed = copy.copy(command)
    changed.params = [copy.copy(param) for param in command.params]
    for param in changed.params:
        param.opts = [*(names[word] for word in param.opts if word in names), *param.opts]
    return changed
