"""Writes tars, however odd, anew as a sound dataset, and reports what was changed."""

from typing import Literal

DottedKeys = Literal["auto", "first", "last"]
Duplicates = Literal["rename", "first", "last", "error"]
