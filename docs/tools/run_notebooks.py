"""Runs the tutorials in this process, and keeps what they print in the notebooks.

``python docs/tools/run_notebooks.py docs/tutorials/*.ipynb`` writes the outputs, and a test compares them. No
Jupyter is needed: a cell's output is what it prints, then the value of its last line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "tutorial"


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[dict[str, Any]]:
    """Run in a folder, with a module of its own, whose names are returned."""
    before = os.getcwd()
    module = sys.modules[NAME] = ModuleType(NAME)
    os.chdir(folder)
    try:
        yield vars(module)
    finally:
        os.chdir(before)
        vars(module).clear()
        del sys.modules[NAME]


def _run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell, and return its outputs as a notebook has them."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NAME, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        outputs.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run a notebook in an empty folder, and return the outputs of each of its code cells."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder, _inside(folder) as names:
        return [_run("".join(cell["source"]), names) for cell in cells]


def with_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, and nothing of the machine that ran it."""
    found = iter(outputs(notebook))
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{number}", "metadata": {}}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": next(found)}
        cells.append({**kept, "source": "".join(cell["source"]).splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    """Run the notebooks that are named, and write them."""
    for name in sys.argv[1:]:
        path = Path(name)
        made = with_outputs(json.loads(path.read_text()))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
