"""The layers: a module imports its own layer and those before it, and there is no cycle anywhere."""

import ast
from pathlib import Path

import pytest

import energon_stream

ROOT = Path(energon_stream.__file__).parent
LAYERS = [
    {
        "arrays",
        "conventions",
        "errors",
        "fork",
        "samples",
        "worker",
        "rng",
        "selection",
        "edataclass",
        "logs",
        "debug_log",
        "drawing",
        "imports",
        "limits",
        "printable",
        "progress",
        "threads",
        "tracing",
        "urls",
        "trust",
        "whole_files",
    },
    {"storage"},
    {"engine"},
    {"cache"},
    {"media"},
    {"decode"},
    {"index"},
    {"files"},
    {"schedule"},
    {"read"},
    {"write"},
    {"pipeline"},
    {"task"},
    {"recipe"},
    {"prewarming"},
    {"state"},
    {"lineage"},
    {"loader"},
    {"lint", "shaping", "doctor"},
    {"__init__"},
    {"browse", "cli", "compat", "integrations", "run_megatron", "simulate", "testing", "top", "transforms"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def layer(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path):
    """Modules of the package that a file imports: inside functions too, and those of which a stub lists
    names.
    """
    stub = path.with_suffix(".pyi")
    if stub.exists():
        package = ".".join(path.relative_to(ROOT.parent).parent.parts)
        nodes = ast.parse(stub.read_text()).body
        yield from (f"{package}.{node.module}" for node in nodes if isinstance(node, ast.ImportFrom))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in found if name in MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_data_flows_one_way(module):
    own = layer(module)
    assert own in LEVEL, f"{own} is in no layer"
    for found in imports(MODULES[module]):
        other = layer(found)
        # A package's __init__ re-exports; importing it is importing that layer.
        assert LEVEL[other] <= LEVEL[own], f"{module} imports {found}: {other} lies to the right of {own}"


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
