"""The house: the core in layers, wings beside it, and no import cycle."""

import ast
import dis
import functools
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import energon_stream

ROOT = Path(energon_stream.__file__).parent
EXTENDED, LOAD, IMPORT = (dis.opmap[name] for name in ("EXTENDED_ARG", "LOAD_CONST", "IMPORT_NAME"))
BASE = {
    "agreement", "arguments", "arrays", "atomic_files", "conventions", "drawing", "edataclass", "errors", "fork", "imports",
    "limits", "living", "logs", "plugins", "printable", "progress", "quantities", "random_states", "rng", "samples", "selection", "threads", "tracing",
    "system_errors", "temporary_folders", "urls", "worker", "worker_fields", "active_call",
}  # fmt: skip
CORE = [
    BASE,
    {"storage"},
    {"engine"},
    {"cache"},
    {"media"},
    {"decode"},
    {"tar"},
    {"index"},
    {"tables"},
    {"auxiliary"},
    {"schedule"},
    {"read"},
    {"pipeline"},
    {"task"},
    {"config"},
    {"state"},
    {"lineage"},
    {"loader"},
]
LEVEL = {name: level for level, names in enumerate(CORE) for name in names}
WINGS = {
    "prepare": set(),
    "prewarming": set(),
    "transforms": set(),
    "write": {"prepare"},
    "tools": {"prepare", "prewarming", "write"},
    "testing": {"prepare"},
    "compat": {"prepare"},
    "integrations": {"compat"},
    "cli": {"compat", "integrations", "prepare", "prewarming", "testing", "tools", "write"},
}
"""Wings, and the wings that each may import. No wing is imported by the core."""
FACADE = {"__init__": set(WINGS), "__main__": {"cli"}, "run_megatron": {"compat"}}
"""The root, which lists public names, and programs. Whatever imports the root is a wing."""
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def room(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@functools.cache
def imports(path):
    return [*read_imports(path)]


def read_imports(path):
    """Modules of the package that a file imports: inside functions too, and those of which a stub lists
    names. The compiled file says it, which mostly lies there already; parsing all files would take seconds.
    """
    stub = path.with_suffix(".pyi")
    if stub.exists():
        package = ".".join(path.relative_to(ROOT.parent).parent.parts)
        nodes = ast.parse(stub.read_text()).body
        yield from (f"{package}.{node.module}" for node in nodes if isinstance(node, ast.ImportFrom))
    for code in codes(SourceFileLoader(path.stem, str(path)).get_code(path.stem)):
        if MODULES.keys().isdisjoint(code.co_names):
            continue
        for module, names in imported(code):
            yield from (name for name in (module, *(f"{module}.{each}" for each in names)) if name in MODULES)


def codes(code):
    """A code object, and those of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def imported(code):
    """Each module that a code object imports, and the names that it takes from it."""
    extended, loaded = 0, None
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= extended << 8
        extended = argument if operation == EXTENDED else 0
        if operation == LOAD:
            loaded = code.co_consts[argument]
        elif operation == IMPORT:
            yield code.co_names[argument], loaded or ()


def refusal(module, found):
    """Why a module must not import another one; None if it may."""
    own, other = room(module), room(found)
    if own == other or other in BASE:
        return None
    if own in LEVEL:
        if other not in LEVEL:
            return f"{module} imports {found}: the core imports no wing"
        return f"{module} imports {found}, which lies to the right" if LEVEL[other] > LEVEL[own] else None
    if other == "__init__" or other in LEVEL:
        return None
    allowed = {**WINGS, **FACADE}[own]
    return None if other in allowed else f"{module} imports {found}: {own} may import {sorted(allowed)}"


def test_each_room_is_of_the_core_or_a_wing():
    assert {room(module) for module in MODULES} <= {*LEVEL, *WINGS, *FACADE}


def test_data_flows_one_way_and_the_core_imports_no_wing():
    found = [(module, other) for module, path in sorted(MODULES.items()) for other in imports(path)]
    assert not [text for pair in found if (text := refusal(*pair))]


def test_the_core_does_not_name_compat():
    """Not by strings either: what it needs of it is a plug-in."""
    core = {path for module, path in MODULES.items() if room(module) in {*LEVEL, "__init__"}}
    stubs = {path.with_suffix(".pyi") for path in core if path.with_suffix(".pyi").exists()}
    assert not [str(path) for path in sorted(core | stubs) if re.search(r"\bcompat\b", path.read_text())]


def test_observers_know_nothing_of_the_loader_that_they_observe():
    loader, observers = "energon_stream.loader", "energon_stream.loader.observe"
    found = [
        (module, other)
        for module, path in MODULES.items()
        if module.startswith(observers)
        for other in imports(path)
        if other.startswith(loader) and not other.startswith(observers)
    ]
    assert found == []


def test_there_is_no_import_cycle():
    graph = {module: set(imports(path)) - {module} for module, path in MODULES.items()}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for other in sorted(graph[module]):
            visit(other)
        path.pop()
        done.add(module)

    for module in sorted(graph):
        visit(module)


def test_no_module_is_far_too_long():
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    del lengths["energon_stream.errors"]  # a flat list
    assert not {module: length for module, length in lengths.items() if length > 430}


def test_every_path_that_the_page_names_exists():
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:\w+/)*\w+(?:\.pyi?|/))`", page)
    places = [ROOT, ROOT.parent, *(ROOT / room for room in ("compat", "loader", "tools"))]
    assert len(named) > 50
    assert not [name for name in named if not any((place / name).exists() for place in places)]
