"""The questions of ``energon-stream prepare``, in Megatron-Energon's order.

Answers may be piped in. An empty line means yes. Older versions asked fewer questions. So that lists of
answers written for them still work, an answer other than yes or no is kept for the next question.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import click

from energon_stream.cli.dataset_yaml_wizard import (
    CRUDE,
    check_parts,
    dataset_yaml,
    find_sample_type,
    sample_fields,
    sample_types,
)
from energon_stream.cli.options import parse_ratio
from energon_stream.cli.terminal import echo, echo_text
from energon_stream.errors import ConfigError, EnergonStreamError
from energon_stream.printable import printable_line

_YES, _NO = frozenset({"", "y", "yes"}), frozenset({"n", "no"})


@dataclass(slots=True)
class Wizard:
    """Asks on the terminal."""

    pending: str | None = None  # an answer to the next question, given at a yes-no question

    def ratio(self) -> tuple[float, float, float]:
        """Ask for the split ratio until it is valid."""
        while True:
            try:
                return parse_ratio(self._ask('Split ratio of train, val and test, like "8,1,1"'))
            except ConfigError as error:
                echo_text(error)

    def dataset_yaml(self, parts: Collection[str]) -> dict[str, Any] | None:
        """Ask for the content of ``dataset.yaml``; None if the user wants none."""
        echo(f"Parts in the tars: {', '.join(parts)}")
        if not self._confirm("Create a dataset.yaml interactively? [Y/n]"):
            return None
        sample_type, field_map = self._sample_type(), None
        question = "Set a simple field_map [Y], or write your own sample_loader [n]? [Y/n]"
        if sample_type != CRUDE and self._confirm(question):
            field_map = self._field_map(sample_type, parts)
        return dataset_yaml(sample_type, field_map)

    def _sample_type(self) -> str:
        types = sample_types()
        for number, name in enumerate(types):
            click.echo(f"{number}. {name}")
        click.echo(f"{len(types)}. {CRUDE} (plain dict for cooking)")
        while True:
            answer = self._ask("Dataset class, by number or name")
            try:
                if not answer.isdigit():
                    return find_sample_type(answer)
                if int(answer) <= len(types):
                    return [*types, CRUDE][int(answer)]
                click.echo(f"There is no class {answer}.")
            except ConfigError as error:
                echo_text(error)

    def _field_map(self, sample_type: str, parts: Collection[str]) -> dict[str, str]:
        click.echo(
            "Name the part of each field. Also: json[field][field], or jpg,png for the first that exists."
        )
        field_map: dict[str, str] = {}
        for field in sample_fields(sample_type):
            optional = "" if field.required else ", empty to skip"
            while True:
                answer = self._ask(
                    f"Please enter a webdataset field name for '{field.name}' ({field.type}{optional})"
                )
                if not answer and not field.required:
                    break
                try:
                    check_parts({field.name: answer}, parts, f"field {field.name!r}")
                    field_map[field.name] = answer
                    break
                except EnergonStreamError as error:
                    echo_text(error)
        return field_map

    def _ask(self, question: str) -> str:
        if self.pending is not None:
            answer, self.pending = self.pending, None
            echo(f"{question}: {answer}")
            return answer
        return str(click.prompt(printable_line(question), default="", show_default=False)).strip()

    def _confirm(self, question: str) -> bool:
        answer = self._ask(question)
        if answer.lower() in _NO:
            return False
        if answer.lower() not in _YES:
            self.pending = answer
        return True
