"""Remarks on tars that are odd and can be read: on what was left aside, or may not be as it was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

Oddity = Literal[
    "no_samples",
    "no_end_mark",
    "system_files",
    "followed_links",
    "links",
    "twice",
    "upper_case",
    "numbers",
    "reserved",
    "not_utf_8",
]
Remarks: TypeAlias = dict[Oddity, tuple[int, str]]
"""How often something odd was found, and the first example."""

_REPAIR = "`energon-stream repair` writes a dataset"
_TEXTS: Mapping[Oddity, tuple[str, str]] = {  # what it is, and what follows
    "no_samples": ("tars without samples", "they are left out"),
    "no_end_mark": (
        "tars without an end mark",
        "whoever wrote them was stopped, so the last sample of each may lack parts",
    ),
    "system_files": ("files that macOS or a tar program left", "they are no parts of samples"),
    "followed_links": (
        "links to other members of their tar",
        f"each is read by a request of its own; {_REPAIR} without links",
    ),
    "links": (
        "links that lead to no part of their tar, or are not beside another part of their sample",
        f"samples lack these parts; {_REPAIR} that has those that it finds",
    ),
    "twice": ("names that their sample has already", "the last one counts"),
    "upper_case": (
        "extensions in upper case",
        f"a field map for `jpg` takes `JPG`, and `sample['jpg']` does not; {_REPAIR} with lower case",
    ),
    "numbers": (
        "samples with numbered parts alone",
        f"keys end at the first dot of a file's name: if these are several samples each, {_REPAIR} with other keys",
    ),
    "reserved": (
        "parts named like fields that samples have",
        f"`__key__` and other such fields hide them in crude samples; {_REPAIR} with other names",
    ),
    "not_utf_8": (
        "names that are not UTF-8",
        f"keys have `\\udc80` to `\\udcff` for their bytes, as in `tarfile`; {_REPAIR} with other names",
    ),
}
_NUMBERED = re.compile(r"(?:^|\.)\d+\.").search
_SURROGATE = re.compile("[\ud800-\udfff]").search


def add_remark(remarks: Remarks, oddity: Oddity, example: str, count: int = 1) -> None:
    """Count something odd."""
    before, first = remarks.get(oddity, (0, example))
    remarks[oddity] = before + count, first


def add_names(remarks: Remarks, keys: list[str], parts: Iterable[tuple[int, str, int, int]]) -> None:
    """Count odd names, given the keys of a tar's samples, and their parts, which begin with the number of the
    sample and the part's name.
    """
    rows = [*parts]
    names = {row[1] for row in rows}
    odd: dict[str, Oddity] = {name: "upper_case" for name in names if name != name.lower()}
    odd |= {name: "reserved" for name in names if name.startswith("__") and name.endswith("__")}
    for sample, name, *_ in rows if odd else ():
        if name in odd:
            add_remark(remarks, odd[name], f"{keys[sample]}.{name}")
    numbered = {name for name in names if _NUMBERED(name)}
    if numbered:
        others = {sample for sample, name, *_ in rows if name not in numbered}
        examples = {sample: name for sample, name, *_ in reversed(rows) if sample not in others}
        for sample in sorted(examples):
            add_remark(remarks, "numbers", f"{keys[sample]}.{examples[sample]}")
    try:
        "".join((*keys, *names)).encode()
    except UnicodeEncodeError:
        for sample, name, *_ in rows:
            if _SURROGATE(keys[sample] + name):
                add_remark(remarks, "not_utf_8", f"{keys[sample]}.{name}")


def merge_remarks(found: Iterable[tuple[str, Remarks]]) -> list[str]:
    """Return a text for each kind of oddity, given the path of each tar and what is odd about it."""
    merged: Remarks = {}
    for path, remarks in found:
        for oddity, (count, example) in remarks.items():
            add_remark(merged, oddity, f"{example!r:.80} in {path}" if example else path, count)
    texts = ((*_TEXTS[oddity], *found) for oddity, found in merged.items())
    return [f"{what}: {count:,}, such as {example}; {follows}" for what, follows, count, example in texts]
