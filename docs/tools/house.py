"""Prints the size and order of a tree, to compare two commits: ``python docs/tools/house.py [ROOT]``.

Code lines have a token other than comments and docstrings. Floors are the modules of the longest chain of
imports within a room. Reach-ins of tests are names with an underscore that belong to others: attributes of
other objects than ``self``, imports from the library, and strings that name one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "energon_stream"
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = {
    "_exit",
    "_getframe",
    "_current_frames",
    "_replace",
    "_asdict",
    "_fields",
    "_make",
    "_repr_html_",
}
_OTHERS = ("_ENERGON", "_SUCCESS")  # variables of the environment, a file of Spark
_PRIVATE_STRING = re.compile(rf"({PACKAGE}\.[\w.]*\.)?_[A-Z][A-Z_]+|{PACKAGE}\.[\w.]+\._[a-z]\w+")


def parsed(folder: Path) -> dict[Path, ast.Module]:
    """Return the trees of all modules below a folder."""
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def code_lines(path: Path, tree: ast.Module) -> int:
    """Return the number of lines that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.difference_update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return len(lines)


def floors(trees: dict[Path, ast.Module], root: Path) -> Counter[str]:
    """Return the floors of each room, which is a folder of the package."""
    names = {".".join(path.relative_to(root).with_suffix("").parts): path for path in trees}
    inner: dict[str, set[str]] = defaultdict(set)
    for name, path in names.items():
        for node in trees[path].body:
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                inner[name] |= {each for each in wanted if each in names and room(each) == room(name)} - {
                    name
                }

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, inner[name]), default=0)

    found: Counter[str] = Counter()
    for name in names:
        found[room(name)] = max(found[room(name)], height(name))
    return found


def room(name: str) -> str:
    """Return the room of a module by its dotted name."""
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else "(top)"


def reach_ins(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, int, str]]:
    """Yield where tests use private names of others."""
    for path, tree in trees.items():
        nodes = list(ast.walk(tree))
        targets = [
            each for node in nodes for each in getattr(node, "targets", [getattr(node, "target", None)])
        ]
        own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {each.id for each in targets if isinstance(each, ast.Name)}
        own |= {each.attr for each in targets if isinstance(each, ast.Attribute) and _of_self(each)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                if node.attr not in own and not _of_self(node):
                    yield path, node.lineno, node.attr
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                yield from ((path, node.lineno, each.name) for each in node.names if _is_private(each.name))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if _PRIVATE_STRING.fullmatch(text) and not text.startswith(_OTHERS):
                    yield path, node.lineno, text


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1 and name not in _DOCUMENTED


def _of_self(node: ast.Attribute) -> bool:
    """Return True for attributes of ``self``, ``cls`` and ``super()``."""
    value = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    trees, tests = parsed(root / PACKAGE), parsed(root / "tests")
    lines, code, files = Counter[str](), Counter[str](), Counter[str]()
    for path, tree in trees.items():
        place = room(".".join(path.relative_to(root).with_suffix("").parts))
        files[place] += 1
        lines[place] += len(path.read_text().splitlines())
        code[place] += code_lines(path, tree)
    height = floors(trees, root)
    print(f"{'room':14}{'files':>7}{'lines':>9}{'code':>9}{'floors':>8}")
    for place in sorted(files):
        print(f"{place:14}{files[place]:7,}{lines[place]:9,}{code[place]:9,}{height[place]:8}")
    print(f"{'library':14}{files.total():7,}{lines.total():9,}{code.total():9,}{max(height.values()):8}")
    names = Counter(path.name for path in trees if path.name not in ("__init__.py", "__main__.py"))
    classes = Counter(
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    for kind, found in (("files", names), ("classes", {k: v for k, v in classes.items() if k[0] != "_"})):
        twice = sorted(name for name, times in found.items() if times > 1)
        print(f"names of {kind} that stand twice or more: {len(twice)} {' '.join(twice)}")
    patched = sum(path.read_text().count("monkeypatch.setattr") for path in tests)
    print(f"tests: {len(list(reach_ins(tests)))} reach-ins, {patched} lines with monkeypatch.setattr")
    return 0


if __name__ == "__main__":
    sys.exit(main())
