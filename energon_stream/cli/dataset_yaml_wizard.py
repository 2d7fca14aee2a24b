"""The questions of ``energon-stream prepare``, in Megatron-Energon's order, and content of ``dataset.yaml``.

Answers may be piped in. An empty line means yes. Older versions asked fewer questions. So that lists of
answers written for them still work, an answer other than yes or no is kept for the next question.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from energon_stream.cli.options import parse_ratio
from energon_stream.cli.terminal import echo, echo_text, wants_json
from energon_stream.compat.addresses import NAMES
from energon_stream.config.fields import parse_field_map, parts_of
from energon_stream.config.sample_types import SAMPLE_TYPES, check_fields
from energon_stream.errors import ConfigError, EnergonStreamError, MetadataError
from energon_stream.printable import nearest, printable_line
from energon_stream.samples import METADATA_FIELDS, Sample

CRUDE = "CrudeWebdataset"
_MODULE = "megatron.energon"  # Megatron-Energon reads it as well
_TYPES: Mapping[str, type[Sample]] = {**SAMPLE_TYPES, Sample.__name__: Sample}
_NUMBERED = sorted(_TYPES.keys() & set(NAMES[""].split()))
"""Types of Megatron-Energon. Lists of answers have their numbers, so other types are chosen by name."""

SAMPLE_LOADER = '''\
# Edit this file. Only loaders that trust the dataset's code execute it.


def sample_loader(raw: dict) -> dict:
    """Turn the parts of a sample into the fields of its type."""
    return dict(
{fields}
    )


def part_filter(part: str) -> bool:
    """Return whether a part is read."""
    return part in {parts!r}
'''


class Field(NamedTuple):
    """A field of a sample type."""

    name: str
    type: str  # as shown to the user
    required: bool  # it has no default


def find_sample_type(name: str) -> str:
    """Return the sample type, or ``CrudeWebdataset``, for a name. ``…Webdataset`` is the older spelling."""
    known = {**_TYPES, "CrudeSample": None}
    for candidate in (name, name.removesuffix("Webdataset") + "Sample"):
        if candidate in known:
            return CRUDE if candidate == "CrudeSample" else candidate
    raise ConfigError(f"no sample type {name!r}", hint=nearest(name, known))


def sample_fields(sample_type: str) -> list[Field]:
    """Return the fields of a sample type, except the fields that all samples have."""
    kind = _TYPES[sample_type]
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return [
        Field(field.name, str(hints[field.name]), field.default is field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.name not in METADATA_FIELDS
    ]


def check_parts(field_map: Mapping[str, Any], parts: Collection[str], where: str) -> None:
    """Check the grammar of a field map, and that each field can come from a part of the tars."""
    for field in parse_field_map(field_map, where):
        wanted = parts_of([field])
        if {part.lower() for part in wanted}.isdisjoint(part.lower() for part in parts):
            dots = "keys end at the first dot of a name, so names with more dots need others first. "
            is_cut = any(part.rpartition(".")[2] in wanted for part in parts)
            raise ConfigError(
                f"the tars have no part {' or '.join(map(repr, sorted(wanted)))}",
                where=where,
                hint=f"{dots if is_cut else ''}They have: {', '.join([*parts][:12])}{', …' * (len(parts) > 12)}.",
            )


def chosen_dataset_yaml(
    sample_type: str, field_map: str | None, parts: Collection[str], wizard: Wizard | None = None
) -> dict[str, Any]:
    """Return the content of ``dataset.yaml`` for the values of ``--sample-type`` and ``--field-map``.

    Without a field map, the names of the parts say it, or the wizard asks. Raises ConfigError if neither can,
    or if the field map is not JSON, has unknown fields or lacks some, or names parts that the tars lack.
    """
    name = find_sample_type(sample_type)
    if field_map is None:
        return dataset_yaml(name, None if name == CRUDE else _found_field_map(name, parts, wizard))
    if name == CRUDE:
        raise ConfigError("a crude dataset has no fields", hint="Leave out --field-map.")
    try:
        mapping = json.loads(field_map)
    except ValueError as error:
        raise ConfigError(f"--field-map is not valid JSON: {error}") from error
    try:
        check_parts(mapping, parts, "--field-map")
        check_fields(_TYPES[name], mapping, "--field-map")
    except MetadataError as error:
        raise ConfigError(error.what, where=error.where, hint=error.hint) from error
    return dataset_yaml(name, mapping)


def _found_field_map(name: str, parts: Collection[str], wizard: Wizard | None) -> dict[str, str]:
    from energon_stream.write.guess import guess_field_map
    from energon_stream.write.typed_samples import FIELD_MAPS

    usual = FIELD_MAPS.get(name, {})
    fields = {field.name: field.required or field.name in usual for field in sample_fields(name)}
    found, missing = guess_field_map(fields, parts)
    if not missing:
        echo(
            f"Fields: {', '.join(f'{field} from {part}' for field, part in found.items())}.", err=wants_json()
        )
        return found
    if wizard is not None:
        return wizard.field_map(name, parts)
    example = json.dumps({**found, **{field: f"json[{field}]" for field in missing}})
    raise ConfigError(
        f"--field-map is missing: no part says that it is the field {' or '.join(map(repr, missing))} of {name}",
        hint=f"Give it, such as --field-map '{example}'. The parts are {', '.join([*parts][:12])}.",
    )


def dataset_yaml(sample_type: str, field_map: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the content of ``dataset.yaml``. Without a field map it refers to ``sample_loader.py``."""
    if sample_type == CRUDE:
        return {"__module__": _MODULE, "__class__": CRUDE}
    document: dict[str, Any] = {"sample_type": {"__module__": _MODULE, "__class__": sample_type}}
    if field_map is not None:
        return {**document, "field_map": dict(field_map)}
    return document | {name: f"sample_loader.py:{name}" for name in ("sample_loader", "part_filter")}


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
            field_map = self.field_map(sample_type, parts)
        return dataset_yaml(sample_type, field_map)

    def _sample_type(self) -> str:
        for number, name in enumerate(_NUMBERED):
            click.echo(f"{number}. {name}")
        click.echo(f"{len(_NUMBERED)}. CrudeSample (plain dict for cooking)")
        while True:
            answer = self._ask("Dataset class, by number or name")
            try:
                if not answer.isdigit():
                    return find_sample_type(answer)
                if int(answer) <= len(_NUMBERED):
                    return [*_NUMBERED, CRUDE][int(answer)]
                click.echo(f"There is no class {answer}.")
            except ConfigError as error:
                echo_text(error)

    def field_map(self, sample_type: str, parts: Collection[str]) -> dict[str, str]:
        """Ask for the part of each field."""
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
