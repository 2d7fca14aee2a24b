"""The reference pages name everything there is, links lead somewhere, and only blocks that cannot run are
skipped.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

import energon_stream
from energon_stream import errors
from energon_stream.cli.main import main
from energon_stream.loader import get_loader, get_savable_loader
from energon_stream.recipe.options import DatasetOptions

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]
SKIPPED = {
    "README.md": ["installs"],
    "docs/guides/localstack.md": ["needs LocalStack; tests/end_to_end runs the same"],
}


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


def test_the_errors_page_has_every_error() -> None:
    text = page("reference/errors.md")
    for name in errors.__all__:
        assert f"`{name}`" in text


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
                    assert f"`{sub}" in text or f"## {sub}" in text, f"{name} {sub} is not on the page"
                    walk(found, f"{name} {sub}")
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("help", "version"):
                assert any(flag in text for flag in option.opts), f"{name}: {option.opts} is not on the page"

    for sub in ("prepare", "prepare-media", "info", "lint", "explain", "prewarm", "cache", "checkpoint"):
        with click.Context(main) as context:
            found = main.get_command(context, sub)
            assert found is not None
            walk(found, sub)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{target} does not exist"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{target}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_blocks_that_cannot_run_are_skipped(path: Path) -> None:
    text = path.read_text()
    skipped = re.findall(r'<!-- skip: next "(.+)" -->', text)
    assert skipped == SKIPPED.get(str(path.relative_to(ROOT)), [])
    if path.parent == ROOT and path.name != "README.md":
        return
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        allowed = {"python", "bash", "yaml", "text"} if language else {""}
        assert language in allowed, f"no test runs a block of {language}"
        assert language or block.startswith("make "), "a block without a language lists make's targets"


@pytest.mark.parametrize("path", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_modules_that_pages_name_exist(path: str) -> None:
    named = set(re.findall(r"`([\w/]+/\w+\.pyi?)`", (ROOT / path).read_text()))
    assert named
    assert not {
        name for name in named if not ((ROOT / name).exists() or (ROOT / "energon_stream" / name).exists())
    }


def test_the_readme_and_the_glossary_stay_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert len(page("concepts/glossary.md").splitlines()) <= 40


def test_every_public_name_has_an_example() -> None:
    """The examples run as doctests."""
    without = [
        name for name in energon_stream.__all__ if ">>>" not in (getattr(energon_stream, name).__doc__ or "")
    ]
    assert without == []
