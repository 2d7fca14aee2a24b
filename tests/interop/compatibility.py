"""Writes ``docs/compatibility.md`` from the marks of the tests.

A test that proves a public name, option or command of Megatron-Energon 7.4.1 has a mark::

    @pytest.mark.energon("MapDataset", "MapDataset(map_fn_config)", "SavableDataset.restore_sample")
    @pytest.mark.energon("cli: lint --parallel")
    @pytest.mark.energon("Metadataset(splits)", differs="pass a path, or the parsed document")

``energon_api.json`` and ``energon_commands.txt`` list what 7.4.1 has. What differs or is missing needs a
reason: that of a mark, or of ``energon_stream/compat/addresses.json``.

Marks that begin with ``8:`` are of Megatron-Energon 8. ``energon_8.json`` has its features, each with marks,
with tests, or with the reason why it is missing; ``addresses_8.json`` has its names.

    python tests/interop/compatibility.py      writes the page
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energon_stream.compat.addresses import NAMES, NAMES_8, find, home, missing_reason
from energon_stream.compat.epath import EPath

HERE = Path(__file__).parent
TESTS = HERE.parent
PAGE = TESTS.parent / "docs" / "compatibility.md"
API: dict[str, dict[str, Any]] = json.loads((HERE / "energon_api.json").read_text())
FEATURES_8: dict[str, dict[str, Any]] = json.loads((HERE / "energon_8.json").read_text())

INTRODUCTION = """\
# Compatibility with Megatron-Energon 7.4.1

Every public name, option and command of Megatron-Energon 7.4.1, under the [alias](frameworks/megatron.md). This page is written
by `python tests/interop/compatibility.py` from the marks of the tests, and a test holds it to them.

* **works**: a test uses it as a program would.
* **differs**: a test shows how.
* **resolves**: it can be imported, and it is the object of this library with the same meaning; no test is marked with it.
* **missing**: with the reason.

[Energon 8](#energon-8) has what the development versions of Megatron-Energon 8 add.

Where the two libraries disagree on purpose, a process follows one of two
[conventions](frameworks/megatron.md#conventions). The order of samples and the states of Megatron-Energon are not matched.
"""


@dataclass
class Proof:
    """The marks of one name."""

    tests: list[str] = field(default_factory=list)  # files, relative to ``tests``
    differs: str | None = None  # how the behaviour differs


def _marks(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.mark.energon", "case"):
            yield node


def read_marks() -> dict[str, Proof]:
    """Return the marks of all tests by name."""
    found: dict[str, Proof] = {}
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if path == Path(__file__) or ("mark.energon" not in text and "@case(" not in text):
            continue
        for call in _marks(ast.parse(text)):
            differs = next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "differs"), None)
            for argument in call.args:
                proof = found.setdefault(ast.literal_eval(argument), Proof())
                test = path.relative_to(TESTS).as_posix()
                if test not in proof.tests:
                    proof.tests.append(test)
                proof.differs = proof.differs or differs
    return found


def commands() -> dict[str, list[str]]:
    """Return the arguments and options of each command of 7.4.1."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "energon_commands.txt").read_text().splitlines():
        words = line.split()
        if words[0] == "##" and words[1] != "group":
            found[" ".join(words[1:])] = []
        elif words[0] == "opt":
            found[list(found)[-1]].append(words[1])
    return found


def _accepted(function: Any) -> set[str] | None:
    """Return the names of a function's parameters; None if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    names = {parameter.name for parameter in parameters}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            options = _unpacked(function)
            if options is None:
                return None
            names |= options
    return names


def _unpacked(function: Any) -> set[str] | None:
    """Return the keys of ``**options: Unpack[SomeTypedDict]``."""
    from energon_stream.config.dataset_options import DatasetOptions

    text = str(getattr(function, "__annotations__", {}).get("options", ""))
    return set(DatasetOptions.__optional_keys__) if "Unpack[" in text else None


@dataclass
class Row:
    """One line of the page."""

    name: str
    status: str
    note: str


def _status(name: str, proofs: dict[str, Proof], present: bool, reason: str | None = None) -> Row:
    proof = proofs.get(name)
    if proof is not None and proof.differs:
        return Row(name, "differs" if present else "missing", proof.differs)
    if not present:
        return Row(name, "missing", reason or "")
    if proof is not None:
        return Row(name, "works", ", ".join(f"`{test}`" for test in proof.tests[:2]))
    return Row(name, "resolves", "")


def _object(name: str) -> Any:
    return EPath if name == "EPath" else find("", name)


def name_rows(proofs: dict[str, Proof]) -> list[Row]:
    """Return a row for each public name, and one for each option or method that differs or is proved."""
    rows = []
    for name, described in sorted(API.items(), key=lambda pair: pair[0].lower()):
        found = _object(name)
        rows.append(_status(name, proofs, True))
        accepted = _accepted(found)
        rows += _option_rows(name, described["options"], accepted, proofs)
        for method, options in described.get("methods", {}).items():
            present = hasattr(found, method) or method in _annotated(found)
            rows.append(_status(f"{name}.{method}", proofs, present))
            taken = _accepted(getattr(found, method, None)) if present else None
            rows += _option_rows(f"{name}.{method}", options if present else [], taken, proofs)
    return rows


def _option_rows(
    name: str, options: list[str], accepted: set[str] | None, proofs: dict[str, Proof]
) -> list[Row]:
    return [
        _status(f"{name}({option})", proofs, accepted is None or option in accepted) for option in options
    ]


def _annotated(found: Any) -> set[str]:
    """Return the attributes that a class declares."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return {name for base in bases for name in vars(base).get("__annotations__", {})}


def address_rows() -> list[Row]:
    """Return a row for each module."""
    rows = []
    for address, names in sorted(NAMES.items()):
        shown = f"megatron.energon.{address}".rstrip(".")
        reason = missing_reason(address)
        if reason is not None:
            rows.append(Row(shown, "missing", reason))
            continue
        missing: dict[str, list[str]] = {}
        for name in names.split():
            if name != "logger" and home(address, name) is None:
                missing.setdefault(missing_reason(address, name) or "?", []).append(name)
        note = "; ".join(
            f"without {', '.join(f'`{name}`' for name in left)}: {why}" for why, left in missing.items()
        )
        rows.append(Row(shown, "works", note))
    return rows


def command_rows(proofs: dict[str, Proof]) -> list[Row]:
    """Return a row for each command and each option."""
    rows = []
    for command, options in commands().items():
        rows.append(_status(f"cli: {command}", proofs, True))
        for option in options:
            proof = proofs.get(f"cli: {command} {option}")
            rows.append(
                _status(f"cli: {command} {option}", proofs, proof is not None, "no test is marked with it")
            )
    return rows


def eight_rows(proofs: dict[str, Proof]) -> list[Row]:
    """Return a row for each feature of Megatron-Energon 8, and for each name that is new at its root."""
    rows = []
    for feature, told in FEATURES_8.items():
        note = told.get("note", "")
        marks = told.get("marks", [])
        if "missing" in told:
            rows.append(Row(feature, "missing", told["missing"]))
            continue
        unproved = [mark for mark in marks if mark not in proofs]
        assert not unproved, unproved
        tests = [*told.get("tests", []), *(test for mark in marks for test in proofs[mark].tests)]
        assert all((TESTS / test).exists() for test in tests), tests
        shown = ", ".join(f"`{test}`" for test in dict.fromkeys(tests))
        rows.append(Row(feature, "differs" if note else "works", "; ".join(filter(None, (note, shown)))))
    for name in NAMES_8[""].split():
        reason = missing_reason("", name)
        rows.append(Row(name, "missing" if home("", name) is None else "resolves", reason or ""))
    return rows


def other_rows(proofs: dict[str, Proof], known: set[str]) -> list[Row]:
    """Return a row for each marked behaviour that is no name, option or command."""
    others = (name for name in sorted(proofs) if name not in known and not name.startswith("8: "))
    return [_status(name, proofs, True) for name in others]


def _table(heading: str, rows: list[Row]) -> list[str]:
    lines = [f"| {heading} | | |", "|---|---|---|"]
    lines += [f"| `{row.name.removeprefix('cli: ')}` | {row.status} | {row.note} |" for row in rows]
    return lines


def _summary(rows: list[Row]) -> str:
    counted = {
        status: sum(row.status == status for row in rows)
        for status in ("works", "differs", "resolves", "missing")
    }
    return ", ".join(f"{number} {status}" for status, number in counted.items() if number)


def rows_of_page() -> dict[str, list[Row]]:
    """Return the rows of each section."""
    proofs = read_marks()
    names, lines = name_rows(proofs), command_rows(proofs)
    known = {row.name for row in [*names, *lines]}
    return {
        "Names, options and methods": names,
        "Commands": lines,
        "Behaviour": other_rows(proofs, known),
        "Modules": address_rows(),
        "Energon 8": eight_rows(proofs),
    }


def make_page() -> str:
    """Return the text of the page."""
    lines = [INTRODUCTION]
    for title, rows in rows_of_page().items():
        shown = rows
        if title.startswith("Names"):
            # An option or method that is simply there needs no line of its own.
            shown = [
                row
                for row in rows
                if row.status != "resolves" or ("(" not in row.name and "." not in row.name)
            ]
        lines += [
            f"## {title}",
            "",
            f"{_summary(rows)}.",
            "",
            *_table(title.split(",")[0].rstrip("s"), shown),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(make_page())
