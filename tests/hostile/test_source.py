"""The library's source: nothing in it evaluates text, runs a shell, or unpickles what it did not write."""

import ast
import re
from pathlib import Path

import pytest

import energon_stream

ROOT = Path(energon_stream.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))

ALLOWED = {
    # Code that a dataset brings, after the user has said that it is trusted.
    ("config/named_code.py", "exec"),
    ("config/named_code.py", "compile"),
    # A process's own bytes, over a private pipe or in a private file.
    ("fork.py", "pickle.loads"),
    ("engine/processes.py", "pickle.loads"),
    ("loader/workers.py", "pickle.loads"),
    ("media/file_pool.py", "pickle.loads"),
    ("loader/loader_position.py", "marshal.loads"),
    ("testing/store_suite.py", "pickle.loads"),
    # Pickles in parts, only with allow_pickle.
    ("decode/sample_decoder.py", "pickle.loads"),
    # weights_only=True, or only with allow_pickle.
    ("decode/sample_decoder.py", "torch.load"),
    ("integrations/batch_puller.py", "torch.load"),
    ("integrations/verl.py", "torch.load"),
    ("cli/state_files.py", "torch.load"),
    ("compat/rank_files.py", "torch.load"),
    ("write/part_values.py", "torch.load"),  # weights_only=True, on what the writer has just saved
    # Servers that tests start, without a shell.
    ("cli/demo.py", "subprocess.Popen"),  # the command that the user gave, without a shell
    ("testing/s3server.py", "subprocess.Popen"),
    ("testing/servers.py", "subprocess.Popen"),
}

FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.spawnl", "os.spawnv", "os.execv",
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
    "subprocess.getoutput", "subprocess.getstatusoutput", "pickle.load", "pickle.loads", "marshal.loads",
    "marshal.load", "shelve.open", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "dill.loads",
    "cloudpickle.loads", "joblib.load", "tempfile.mktemp", "asyncio.create_subprocess_shell",
}  # fmt: skip


PARTS = [name.split(".") for name in FORBIDDEN if "." in name]
BUILT_IN = re.compile(rf"(?<![.\w])({'|'.join(name for name in FORBIDDEN if '.' not in name)})\(|shell")
CALLS = [
    (head, re.compile(rf"\b{rest[-1]}\(|\bfrom {'.'.join([head, *rest[:-1]])} import"))
    for head, *rest in PARTS
]


def may_call_one(source):
    """Whether a file has the words of a call, in one place or another: the others need no parsing."""
    return BUILT_IN.search(source) or any(head in source and call.search(source) for head, call in CALLS)


def dotted(node):
    """``a.b.c`` of an expression; None for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def calls(tree):
    """Each call of a tree with its full name, by whatever name the module imports the function."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            head, dot, rest = name.partition(".")
            yield f"{names.get(head, head)}{dot}{rest}", node


def dangers(source):
    """Forbidden calls, and calls with a shell."""
    for name, node in calls(ast.parse(source)) if may_call_one(source) else ():
        if name in FORBIDDEN:
            yield name, node
        if any(word.arg == "shell" for word in node.keywords):
            yield "shell=", node


def test_no_text_is_evaluated_and_no_shell_is_run():
    found = set()
    for path in FILES:
        own = str(path.relative_to(ROOT))
        for name, node in dangers(path.read_text()):
            assert (own, name) in ALLOWED, f"{own}:{node.lineno} calls {name}"
            found.add((own, name))
            if name == "torch.load":
                (argument,) = [word.value for word in node.keywords if word.arg == "weights_only"]
                assert ast.unparse(argument) in ("True", "not trusted")
    assert found == ALLOWED  # every exception is still needed


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "import os\nos.system('ls')",
        "from os import system as run\nrun('ls')",
        "import subprocess as s\ns.run(['ls'], shell=True)",
        "import pickle\npickle.loads(b'')",
        "from yaml import load\nload('')",
    ],
)
def test_the_scan_sees_what_it_should(source):
    assert list(dangers(source))
