"""What type checkers infer for a user: both check a program whose every ``assert_type`` must hold.

Both complain of an ``ignore`` comment without an error, so they must find the errors that the program marks.
mypy shares the cache of ``make lint``, which has checked the library, so that it takes a second of
``make test``; pyright, which has no cache, runs at night.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="the extra lint has the type checkers")

REPOSITORY = Path(__file__).parents[2]
PROGRAM = "tests/type_checkers/training_program.py"
STRICT = ["mypy", "--strict"]
PYRIGHT = ["pyright", "--pythonpath", sys.executable]


IMPORT = re.compile(r"^ *(?:>>> )?(from energon_stream[\w.]* import (?:\([^)]*\)|[\w, ]+))", re.MULTILINE)


@pytest.fixture(scope="module")
def imports(tmp_path_factory):
    """A program with every import that users are shown. It lies elsewhere: the library is a package to it."""
    pages = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").rglob("*.py"),
    ]
    pages += (REPOSITORY / "energon_stream/skills").rglob("*.md")
    cells = [path.read_text() for path in pages]
    for notebook in (REPOSITORY / "docs").rglob("*.ipynb"):
        cells += ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]]
    found = sorted({" ".join(each.split()) for text in cells for each in IMPORT.findall(text)})
    assert len(found) > 50
    assert any("testing" in line for line in found)
    program = tmp_path_factory.mktemp("user") / "imports_of_users.py"
    program.write_text("\n".join(found) + "\n")
    return program


@pytest.mark.parametrize(
    "checker", [STRICT, pytest.param(PYRIGHT, marks=pytest.mark.slow)], ids=["mypy", "pyright"]
)
def test_batches_have_their_type(checker, imports):
    checked = subprocess.run(
        [sys.executable, "-m", *checker, PROGRAM, str(imports)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
