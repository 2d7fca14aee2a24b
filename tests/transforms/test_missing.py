"""The transforms where torchvision is missing."""

import sys

import pytest

from energon_stream import transforms
from energon_stream.errors import MissingPackageError


def test_a_missing_torchvision_is_named_with_its_extra(monkeypatch):
    for name in ("merge", "mappers"):
        monkeypatch.delitem(sys.modules, f"energon_stream.transforms.{name}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"] or ["torchvision"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"energon-stream\[transforms\]"):
        transforms.MergeTransform  # noqa: B018
    with pytest.raises(AttributeError):
        transforms.Nothing  # noqa: B018
