"""The pages of the documentation: their code blocks, links and names. Pure; runs nothing.

Every fenced block says above itself how it is tested, in a comment that only its source shows::

    <!-- test: run -->

    ```python
    ...

``CATEGORIES`` has all that can be said there. A block that says nothing is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

CATEGORIES = {
    # python
    "run": "executed; the blocks of a page share their names, in order",
    "postgres": "executed like run, with the data and the locks of the shop in a PostgreSQL",
    "pytest": "a test module, which has to pass",
    "types": "checked by mypy, not executed",
    "file": "a file of a project that a test builds and runs: PATH, or PATH append",
    # shell
    "install": "installs packages: tested with the wheel",
    "tox": "its environments exist in tox.ini, and have tests of their own",
    "manage": "commands of manage.py, run in the site of these tests",
    "project": "run in the project that the page builds",
    "worker": "runs in the background of the project that the page builds",
    # others
    "output": "what a command prints: compared where the page is run; or, output like this",
    "redis.conf": "a Redis is started with it, and found fit for locks",
    "entry-point": "registers a backend, in the group that SyncGuard reads",
    "redis.acl": "a Redis has this user, who can do all that locks need",
    "tree": "every module of the packages, and no other",
    "moved": "old and new names of modules: the new ones exist, the old ones do not",
}

SHELL = {"console", "bash", "sh"}

_FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>.*)$")
_COMMENT = re.compile(r"^<!-- test: (?P<words>[^>]+) -->$")
_HEADING = re.compile(r"^#{1,6} (?P<title>.+?)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
_ATTRIBUTE = re.compile(r"\b(?:src|srcset|href)=\"(?P<target>[^\"]+)\"")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    words: tuple[str, ...] = field(default=())

    @property
    def category(self) -> str | None:
        return self.words[0] if self.words else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """What users read: the README, the changes, and all of docs/."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return list(_blocks(page))


def blocks_of(category: str, page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.category == category]


def _blocks(page: Path) -> Iterator[Block]:
    words: tuple[str, ...] = ()
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for _, line in lines:
        comment, fence = _COMMENT.match(line.strip()), _FENCE.match(line)
        if comment:
            words = tuple(comment["words"].split())
        elif fence:
            start, body = 0, []
            for number, inner in lines:
                start = start or number
                if inner.strip() == fence["mark"]:
                    break
                body.append(inner.removeprefix(fence["indent"]))
            language = (fence["info"].split() or [""])[0]
            yield Block(page, start, language, "\n".join(body) + "\n", words)
            words = ()
        elif line.strip():
            words = ()


def prose(page: Path) -> str:
    """The page without its fenced blocks and comments."""
    kept: list[str] = []
    mark: str | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if mark is None and fence:
            mark = fence["mark"]
        elif mark is not None:
            if line.strip() == mark:
                mark = None
        else:
            kept.append(line)
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    """The targets of links and images, without those inside code."""
    text = _SPAN.sub("`code`", prose(page))
    return [match["target"] for form in (_LINK, _ATTRIBUTE) for match in form.finditer(text)]


def code_spans(page: Path) -> list[str]:
    """The texts in single backticks."""
    return _SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and code hosts make them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        heading = _HEADING.match(line)
        if heading:
            found.add(slug(heading["title"]))
    return found


def slug(title: str) -> str:
    plain = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)
