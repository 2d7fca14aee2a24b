"""The reference pages name everything there is, links lead somewhere, and only blocks that cannot run are
skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from sybil.integration.pytest import SybilItem

import energon_stream
from energon_stream.cli.main import main
from energon_stream.config.dataset_options import DatasetOptions
from energon_stream.loader import get_loader, get_savable_loader

ROOT = Path(__file__).resolve().parent.parent


def tool(name: str) -> Any:
    """Import a tool of the documentation."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_site, run_notebooks = tool("build_site"), tool("run_notebooks")
SITE_PAGES = build_site.sources()
"""The source of each page of the site."""
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]
SKIPPED = {
    "docs/frameworks/automodel.md": ["nemo-automodel"],
    "docs/frameworks/torchtitan.md": ["torchtitan"] * 2,
    "docs/guides/convert.md": ["datasets", "datasets", "mosaicml-streaming"],
    "docs/guides/images.md": ["torchvision"],
    "docs/migration/litdata.md": ["litdata"],
    "docs/migration/mosaicml-streaming.md": ["mosaicml-streaming"],
}
"""Packages that blocks need which do not run here; `make suites` runs them, in other environments."""
OTHERS = {"img2dataset", "."}
"""What pages let users install, beside the clone and packages that `pyproject.toml` names."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def options_of(function: object) -> set[str]:
    names = {name for name in inspect.signature(function).parameters if not name.startswith("_")}  # type: ignore[arg-type]
    names -= {"dataset"}
    return names - {"options"} | DatasetOptions.__optional_keys__ if "options" in names else names


@pytest.mark.parametrize(
    "name", ["get_train_dataset", "get_val_dataset", "get_val_datasets", "ReadOptions", "WorkerConfig"]
)
def test_the_options_page_has_every_option(name: str) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", page("reference/options.md"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert options_of(getattr(energon_stream, name)) <= listed


@pytest.mark.parametrize("function", [get_loader, get_savable_loader])
def test_the_options_page_has_every_option_of_loaders(function: object) -> None:
    text = page("reference/options.md")
    for name in options_of(function):
        assert f"`{name}`" in text


def test_the_options_of_the_cache_are_in_its_guide() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", page("guides/cache.md"), re.MULTILINE))
    assert options_of(energon_stream.CacheConfig) <= listed


def test_the_environment_page_has_every_variable() -> None:
    used = set()
    for path in (ROOT / "energon_stream").rglob("*.py"):
        used |= set(re.findall(r"[\"'](ENERGON_STREAM_[A-Z_]+)[\"']", path.read_text()))
    listed = set(re.findall(r"^\| `(ENERGON_STREAM_\w+)`", page("reference/environment.md"), re.MULTILINE))
    assert used
    assert used <= listed


def test_the_commands_page_has_every_command_and_option() -> None:
    text = page("reference/commands.md")

    def walk(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for sub in command.list_commands(context):
                    found = command.get_command(context, sub)
                    assert found is not None
                    named = re.search(rf"(`|^## ){sub}[ `\n]", text, re.MULTILINE)
                    assert named, f"{name} {sub} is not on the page"
                    walk(found, f"{name} {sub}")
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("help", "version"):
                assert any(flag in text for flag in [*option.opts, *option.secondary_opts]), (
                    f"{name}: {option.opts} is not on the page"
                )

    walk(main, "energon-stream")


def anchors(page: str) -> set[str]:
    """Return the anchors that code hosts and the site make of headings."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", SITE_PAGES)
def test_links_lead_somewhere(name: str) -> None:
    source = SITE_PAGES[name]
    page = source.read_text()
    if source.suffix == ".ipynb":
        page = build_site.notebook_page(json.loads(page))
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (source.parent / path).resolve() if path else source
        assert found.exists(), f"{target} does not exist"
        if found.suffix == ".md" and anchor:
            assert anchor in anchors(found.read_text()), f"{target}: no such heading"
        if found.suffix in (".md", ".ipynb"):
            assert str(found.relative_to(ROOT).with_suffix(".md")) in SITE_PAGES, (
                f"{target} is no page of the site"
            )


def test_each_page_is_in_the_navigation_once() -> None:
    pages = [entry.page for entry in build_site.navigation()]
    assert sorted(pages) == sorted(SITE_PAGES)


def test_the_list_of_pages_for_language_models_has_each_page() -> None:
    listed = build_site.llms_text()
    for source in SITE_PAGES.values():
        assert f"]({source.relative_to(ROOT)})" in listed


def test_links_of_the_site_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here">b</a><a href="#top">a</a>')
    (tmp_path / "b.html").write_text(
        '<a href="a.html#gone">a</a><img src="no.png"><a href="https://x/y">x</a>'
    )
    assert build_site.broken_links(tmp_path) == [
        "a.html: b.html#here has no such anchor",
        "b.html: a.html#gone has no such anchor",
        "b.html: no.png does not exist",
    ]


def test_the_api_page_has_every_public_name_once() -> None:
    listed = build_site.api_names(page("reference/api.md"))
    assert len(listed) == len(set(listed))
    assert {f"energon_stream.{name}" for name in energon_stream.__all__} <= set(listed)
    for name in listed:
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name


def test_each_topic_of_the_api_has_a_page_of_its_names():
    pages = [build_site.page_text(name, build_site.sources()[name]) for name in build_site.topics()]
    shown = [name for page in pages for name in re.findall(r"^::: (.+)$", page, re.MULTILINE)]
    assert shown == build_site.api_names(page("reference/api.md"))


def test_the_search_knows_titles_alone_of_what_was_decided_and_measured():
    def item(location: str, level: int, title: str, *path: str) -> dict[str, Any]:
        return {"location": location, "level": level, "title": title, "text": "cache", "path": [*path, title]}

    late = item("docs/decisions/018.html", 1, "018. The cache pins", "Project", "Decisions")
    guide = item("docs/guides/cache.html", 1, "Cache and prewarm", "Guides", "Stores")
    items = [late, item("docs/decisions/018.html#context", 2, "Context"), guide]
    found = build_site.in_search({"config": {}, "items": items})["items"]
    assert found == [guide, {**late, "title": "Decisions", "text": "018. The cache pins", "path": []}]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_blocks_that_cannot_run_are_skipped(path: Path) -> None:
    text = path.read_text()
    skipped = re.findall(r"<!--+ *skip: (.*?) *--", text)
    packages = SKIPPED.get(str(path.relative_to(ROOT)), [])
    assert skipped == [f'next "needs the package {name}"' for name in packages]
    if path.parent == ROOT and path.name != "README.md":
        return
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        allowed = {"python", "bash", "yaml", "text"} if language else {""}
        assert language in allowed, f"no test runs a block of {language}"
        assert language or block.startswith("make "), "a block without a language lists make's targets"


def test_the_tests_of_known_faults_exist() -> None:
    """Each line names one, or says that it has none."""
    page = (ROOT / "docs/reference/known-faults.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0].strip("| ")) for row in rows] == [*range(1, 49)]
    for row in rows:
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row[3])
        assert tests or row[3].startswith("none: ")
        assert len(tests) == row[3].count("::")
        for path, name in tests:
            assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"


def test_a_suite_runs_each_block_that_does_not_run_here() -> None:
    suites = subprocess.run(["make", "-n", "suites"], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = suites.stdout.replace("\\\n", "").splitlines()
    tested = {word for line in lines if " -m pytest " in line for word in line.split()}
    assert tested >= SKIPPED.keys()


def test_each_command_that_agents_are_told_is_run() -> None:
    """A command in a sentence alone could have an option that there is not, and had one."""
    pages = [path.read_text() for path in (ROOT / "energon_stream/skills").rglob("*.md")]
    blocks = [block for text in pages for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    named, run = (
        {name for text in texts for name in re.findall(r"energon-stream ([a-z-]+)", text)}
        for texts in (pages, blocks)
    )
    assert named == run
    assert len(run) > 10


def test_what_users_are_told_to_install_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [name for names in (project["dependencies"], *extras.values()) for name in names]
    known = {re.split(r"[\[<>=]", name)[0] for name in named} | OTHERS
    known |= {path.name for path in (ROOT / "packages").iterdir()} | {project["name"]}
    sources = [*PAGES, *(ROOT / "energon_stream").rglob("*.md"), *(ROOT / "energon_stream").rglob("*.py")]
    told = {
        (path.name, word)
        for path in sources
        for line in re.findall(r"pip install ([^`\n]+)", path.read_text())
        for word in re.findall(r"(?:^|(?<= ))(?!-)[\w.\[\],{}'-]+", re.sub(r"--index-url \S+", "", line))
    }
    assert len(told) > 30
    for place, word in told:
        name, _, chosen = word.strip("'").rstrip("]").partition("[")
        assert name in known, f"{place}: {word} is no package that is known"
        if not chosen.startswith("{"):  # a variable of the library
            assert set(chosen.split(",")) <= {"", *extras}, (
                f"{place}: {word} has an extra that does not exist"
            )


@pytest.mark.parametrize("path", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_modules_that_pages_name_exist(path: str) -> None:
    named = set(re.findall(r"`([\w/]+/\w+\.pyi?)`", (ROOT / path).read_text()))
    assert named
    assert not {
        name for name in named if not ((ROOT / name).exists() or (ROOT / "energon_stream" / name).exists())
    }


@pytest.mark.parametrize(
    "name", sorted((ROOT / "docs/tutorials").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_tutorial_prints_what_it_shows(name: Path) -> None:
    notebook = json.loads(name.read_text())
    shown = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert run_notebooks.outputs(notebook) == shown, f"run python docs/tools/run_notebooks.py {name}"


def test_the_readme_and_the_glossary_stay_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert len(page("concepts/glossary.md").splitlines()) <= 40


def test_every_public_name_has_an_example() -> None:
    """The examples run as doctests."""
    without = [
        name for name in energon_stream.__all__ if ">>>" not in (getattr(energon_stream, name).__doc__ or "")
    ]
    assert without == []


def test_an_example_may_fail_with_a_cause_of_one_frame():
    with pytest.raises(KeyError) as cause:
        raise KeyError

    assert SybilItem._traceback_filter(None, cause) == cause.traceback
