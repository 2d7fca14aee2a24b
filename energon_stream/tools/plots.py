"""Plots by matplotlib, as SVG and PNG files. An SVG file suits light and dark pages: it has no background."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, PALE, STRONG = "#010203", "#8ab4e8", "#3b82e6"
"""Colours: that of the page's text, and two that are seen on light and dark pages."""
_STYLE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
_INKED = ("text.color", "xtick.color", "ytick.color", "axes.edgecolor", "axes.labelcolor")
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "a"}
_SETTINGS = {
    **dict.fromkeys(_INKED, INK),
    **_SVG,
    "axes.facecolor": "none",
    "font.size": 9,
    "text.parse_math": False,
}


def picture_file(path: str) -> str:
    """Return the path of an ``.svg`` or ``.png`` file. Raises ConfigError, and MissingPackageError."""
    if not path.lower().endswith((".svg", ".png")):
        raise ConfigError(f"{path} is not the name of a picture", hint="use one that ends in .svg or .png")
    with of_extra("plots"):
        import matplotlib  # noqa: F401
    return path


def save_plot(
    path: str | os.PathLike[str], size: tuple[float, float], fill: Callable[[Axes], object]
) -> None:
    """Write what ``fill`` draws, on some inches, to a file that :func:`picture_file` takes."""
    kind, data = picture_file(os.fspath(path))[-3:].lower(), io.BytesIO()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    paper: dict[str, Any] = (
        {"facecolor": "white"} if kind == "png" else {"transparent": True, "metadata": {"Date": None}}
    )
    with rc_context(_SETTINGS):
        figure = Figure(size, layout="constrained")
        fill(figure.add_subplot())
        figure.savefig(data, format=kind, dpi=150, **paper)
    found = data.getvalue()
    if kind == "svg":
        head, tag, rest = found.decode().replace(INK, "currentColor").partition("<defs>")
        found = f"{head}{_STYLE}{tag}{rest}".encode()
    Path(path).write_bytes(found)
