"""Builds the site of the documentation, with ``llms.txt``, its list of pages.

It copies the pages to ``.site/pages``, has Zensical make HTML of them, and checks every link of the result.
Pages keep their places, so their relative links work on a code host as well. Two kinds of pages are made on
the way: notebooks become Markdown, and each topic of ``docs/reference/api.md`` gets a page of docstrings. The
search finds guides before what was decided, measured and changed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".site"
PAGES, HTML = SITE / "pages", SITE / "html"
API = Path("docs/reference/api.md")
ROOT_PAGES = ("README.md", "AGENTS.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
OTHER_FILES = ("LICENSE", "docs/**/*.png", "docs/**/*.svg", "docs/**/*.json")
LATE = (
    "docs/decisions/",
    "docs/benchmarks/",
    "docs/reliability",
    "ARCHITECTURE",
    "CHANGELOG",
    "CONTRIBUTING",
)
"""Pages of which the search knows the titles alone, as text, so that others come before them."""
_TOPIC = re.compile(r"^## (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"^\* `([\w.]+)`$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Entry(NamedTuple):
    """A page in the navigation."""

    section: str  # empty for pages outside of all sections
    title: str
    page: str  # path of the Markdown page, from the root


def navigation() -> list[Entry]:
    """Return the pages in the navigation of ``zensical.toml``, in order."""

    def walk(entries: list[dict[str, Any]], section: str) -> Iterator[Entry]:
        for entry in entries:
            for title, what in entry.items():
                if isinstance(what, str):
                    yield Entry(section, title, what)
                else:
                    yield from walk(what, section or title)

    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    return list(walk(config["project"]["nav"], ""))


def slug(title: str) -> str:
    """Return a title as part of a path."""
    return title.lower().replace(",", "").replace(" ", "-")


def topics() -> dict[str, tuple[str, str]]:
    """Return title and list of names of each topic of the API, by the path of its page."""
    _, *parts = _TOPIC.split((ROOT / API).read_text())
    found = zip(parts[::2], parts[1::2], strict=True)
    return {f"{API.with_suffix('')}/{slug(title)}.md": (title, names) for title, names in found}


def sources() -> dict[str, Path]:
    """Return the source of each page: Markdown, or a notebook of the same name."""
    found = [ROOT / name for name in ROOT_PAGES]
    found += sorted((ROOT / "examples").rglob("README.md"))
    found += [path for suffix in ("md", "ipynb") for path in sorted((ROOT / "docs").rglob(f"*.{suffix}"))]
    pages = {str(path.relative_to(ROOT).with_suffix(".md")): path for path in found}
    return pages | dict.fromkeys(topics(), ROOT / API)


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: text, code, and what the code printed or showed."""
    blocks = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(text)
            continue
        blocks.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                blocks.append("".join(data["text/html"]))
            else:
                shown = "".join(output.get("text") or data.get("text/plain", ""))
                blocks.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def api_names(page: str) -> list[str]:
    """Return the names that the API page lists, with their packages."""
    listed = _NAME.findall(page)
    return [name if name.startswith("energon_stream.") else f"energon_stream.{name}" for name in listed]


def topic_page(title: str, names: str) -> str:
    """Return the page of a topic of the API, with the docstring of each name in its place."""
    return f"# {title}\n" + _NAME.sub(lambda match: f"\n::: {api_names(match[0])[0]}\n", names)


def api_index(page: str) -> str:
    """Return the API page with a link from each topic, and from each name, to the page that has it."""
    for path, (title, names) in topics().items():
        target = f"{API.stem}/{Path(path).name}"
        linked = _NAME.sub(lambda match: f"* [`{match[1]}`]({target}#{api_names(match[0])[0]})", names)  # noqa: B023
        page = page.replace(f"## {title}\n{names}", f"## [{title}]({target})\n{linked}")
    return page


def page_text(page: str, source: Path) -> str:
    """Return a page as Markdown for the site."""
    if page in topics():
        return topic_page(*topics()[page])
    text = source.read_text()
    if source.suffix == ".ipynb":
        text = notebook_page(json.loads(text))
    # Pages link to notebooks, which a code host shows; the site has pages of them.
    text = re.sub(r"(\]\([^)#:\s]+)\.ipynb(?=[)#])", r"\1.md", text)
    return api_index(text) if page == str(API) else text


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's text, without markup."""
    body = _FENCE.sub("", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    for paragraph in body.split("\n\n"):
        line = " ".join(paragraph.split())
        if line and not re.match(r"[#|!<:]|\* |\d+\. ", line):
            plain = re.sub(r"[*`]", "", _LINK.sub(r"\1", line))
            return re.split(r"(?<=[.?]) |:$", plain)[0]
    return ""


def llms_text() -> str:
    """Return ``llms.txt``: each page with what it is about."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}."]
    found = sources()
    section = None
    for entry in navigation():
        if entry.section != section:
            section = entry.section
            lines += ["", f"## {section}"] if section else []
            lines.append("")
        elif section is None:
            lines.append("")
        if entry.page in topics():  # the page of all topics has their names
            continue
        about = first_sentence(page_text(entry.page, found[entry.page]))
        link = found[entry.page].relative_to(ROOT)
        lines.append(f"* [{entry.title}]({link}){f': {about}' if about else ''}")
    return "\n".join(lines) + "\n"


def stage() -> None:
    """Copy all pages, and what they show or link to, to the folder that Zensical reads."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for page, source in sources().items():
        target = PAGES / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page_text(page, source))
    for pattern in OTHER_FILES:
        for path in ROOT.glob(pattern):
            target = PAGES / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def build() -> None:
    """Have Zensical make HTML; a warning is an error."""
    shutil.rmtree(HTML, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    print(said)
    if done.returncode or re.search(r"\b(warning|error)\b", said, re.IGNORECASE):
        sys.exit("the site has warnings")
    # The pages as text, which llms.txt names.
    for page, source in sources().items():
        notebook = source.suffix == ".ipynb"
        shutil.copy(
            source if notebook else PAGES / page, HTML / (source.relative_to(ROOT) if notebook else page)
        )
    (HTML / "llms.txt").write_text(llms_text())
    index = HTML / "search.json"
    index.write_text(json.dumps(in_search(json.loads(index.read_text()))))


def in_search(index: dict[str, Any]) -> dict[str, Any]:
    """Return the index of the search, in which guides come first."""
    ranked: list[list[dict[str, Any]]] = [[], [], []]
    for item in index["items"]:
        late, of_api = (
            item["location"].startswith(LATE),
            item["location"].startswith(str(API.with_suffix(""))),
        )
        if late and item["level"] > 1:
            continue
        if late:  # the words of a title count most
            *above, _ = item["path"] or [""]
            item |= {"title": above[-1] if above else "Project", "text": item["title"]}
        if late or of_api:
            item["path"] = []
        ranked[2 if late else 1 if of_api else 0].append(item)
    return {**index, "items": [item for items in ranked for item in items]}


class _Page(HTMLParser):
    """The anchors of an HTML page, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the ids, and the links."""
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        self.links |= {value for name in ("href", "src") if (value := found.get(name))}


def broken_links(folder: Path) -> list[str]:
    """Return the links of a folder of HTML pages that lead nowhere within it."""
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the server's root
            continue
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.relative_to(folder)}: {link} does not exist")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.relative_to(folder)}: {link} has no such anchor")
    return broken


def missing_names() -> list[str]:
    """Return the names of the API page that have no docstring on the site."""
    pages = [(HTML / page).with_suffix(".html").read_text() for page in topics()]
    anchors = {anchor for page in pages for anchor in _Page(page).anchors}
    return [name for name in api_names((ROOT / API).read_text()) if name not in anchors]


def main() -> None:
    """Build the site."""
    stage()
    build()
    problems = broken_links(HTML) + [f"{name} is not on the API page" for name in missing_names()]
    if problems:
        sys.exit("\n".join(problems))
    print(
        f"{len(sources())} pages, {len(list(HTML.rglob('*.html')))} of them HTML, in {HTML.relative_to(ROOT)}"
    )


if __name__ == "__main__":
    main()
