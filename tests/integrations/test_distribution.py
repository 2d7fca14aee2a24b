"""The distribution ``energon-stream-megatron``: what its wheel has, and what processes see of it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from energon_stream import __version__
from energon_stream.compat.addresses import ENERGON_VERSION

pytest.importorskip("hatchling")
PACKAGE = Path(__file__).parents[2] / "packages" / "energon-stream-megatron"
ASK = "import megatron.energon as e, importlib.metadata as m; print(e.WorkerConfig, m.version('megatron-energon'))"
ANSWER = f"<class 'energon_stream.worker.WorkerConfig'> {ENERGON_VERSION}\n"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("hatch_build", PACKAGE / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(build, tmp_path):
    """A folder with the files of the wheel."""
    for path, text in build.contents().items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_the_wheel_has_the_modules_and_is_pinned(build):
    files = build.contents()
    assert sum(path.endswith(".py") for path in files) == 1
    assert {path.split("/")[0] for path in files} == {"megatron", "megatron_energon-7.4.1.egg-info"}
    assert "megatron/__init__.py" not in files  # other parts of Megatron stay beside it
    assert "import EPath as EPath" in files["megatron/energon/epathlib/epath.pyi"]
    renamed = re.findall(r"import (\w+) as (\w+)", "".join(files.values()))
    assert all(name in (there, f"_{name[1:]}") for there, name in renamed)  # others are not exported
    metadata = {}
    build.Dependency(str(PACKAGE), {}).update(metadata)
    assert metadata == {"dependencies": [f"energon-stream=={__version__}"]}


def test_children_and_tools_see_it(installed, run_fresh):
    """A child that Python starts, as Ray's actors are, has the package without a word of the parent."""
    path = {"PYTHONPATH": str(installed)}
    assert run_fresh("-c", ASK, **path) == ANSWER
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    assert run_fresh("-c", child, **path) == ANSWER
    alias = "from energon_stream.integrations.megatron import install_alias; install_alias();"
    assert run_fresh("-c", alias + ASK, **path) == ANSWER
    assert run_fresh("-c", "import megatron.energon;" + alias + ASK, **path) == ANSWER


def test_it_is_refused_beside_the_original(installed, run_fresh):
    original = installed / "megatron_energon-7.4.0.dist-info"
    original.mkdir()
    (original / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-energon\nVersion: 7.4.0\n")
    (original / "RECORD").write_text("megatron/energon/__init__.py,,\n")
    refused = run_fresh("-c", ASK, PYTHONPATH=str(installed), code=1)
    assert "AliasError: megatron-energon and energon-stream-megatron are installed" in refused
    assert "Uninstall both" in refused or "uninstall both" in refused


@pytest.mark.slow
def test_type_checkers_see_it(installed, tmp_path):
    """Mypy, which knows nothing of finders, infers the types of names that it imports."""
    program = tmp_path / "program.py"
    program.write_text(
        "from megatron.energon.epathlib import EPath\nreveal_type(EPath('a').size())\n"
        "from megatron.energon.wrappers.base import BaseWrapperDataset as Base\nclass Own(Base[int]): ...\n"
    )
    options = ["--no-incremental", "--no-implicit-reexport", "--config-file="]
    command = [sys.executable, "-m", "mypy", *options, program]
    # Mypy does not follow editable installations.
    path = {**os.environ, "PYTHONPATH": str(PACKAGE.parents[1])}
    done = subprocess.run(command, cwd=installed, env=path, capture_output=True, text=True, check=False)
    assert 'int"' in done.stdout, done.stdout
    assert "error" not in done.stdout, done.stdout


@pytest.mark.slow
def test_it_installs_into_an_empty_environment(tmp_path):
    """With pip, which then takes Megatron-Energon for installed."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    build = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=PACKAGE, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        environment / "bin" / "python",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    listed = subprocess.run([*pip, "list"], check=True, capture_output=True, text=True).stdout
    assert "energon-stream-megatron" in listed
    assert f"megatron-energon        {ENERGON_VERSION}" in listed
    wanted = f"megatron-energon=={ENERGON_VERSION}"
    again = subprocess.run(
        [*pip, "install", "--no-index", wanted], check=True, capture_output=True, text=True
    )
    assert "already satisfied" in again.stdout
