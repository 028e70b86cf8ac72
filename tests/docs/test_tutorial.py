"""The tutorial, from its first line to its last, in an empty folder."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack

from pages import DOCS, Block, blocks
from shop_project import Project, Worker

VARIES = (
    r"[0-9a-f]{24}",  # a hash
    r"[0-9a-f]{8}-[0-9a-f-]{27}",  # the id of a task
    r"@\S+",  # the host
    r"(?:under 1|\d) s",  # a short time
    r"\d{15}",  # a fence
    r" {2,}",  # alignment
)
"""In "output like this", what one of these matches stands for all that it matches."""


def is_what_was_printed(block: Block, printed: str) -> bool:
    if block.words == ("output",):
        return block.text.strip() == printed.strip()
    assert block.words == ("output", "like", "this"), block
    parts = re.split("(" + "|".join(VARIES) + ")", block.text.strip())
    pattern = "".join(_pattern_of(part) for part in parts)
    return re.fullmatch(pattern, printed.strip()) is not None


def _pattern_of(part: str) -> str:
    return next((varies for varies in VARIES if re.fullmatch(varies, part)), re.escape(part))


def test_the_tutorial_works_as_it_is_written(tmp_path, syncguard_redis):
    project = Project(tmp_path, syncguard_redis.url)
    printed = ""
    with ExitStack() as stack:
        for block in blocks(DOCS / "tutorial.md"):
            if block.category == "file":
                project.add([block])
            elif block.category == "project":
                printed = project.shell(block.text)
            elif block.category == "worker":
                stack.enter_context(Worker(project, shlex.split(block.text)))
            elif block.category == "output":
                assert is_what_was_printed(block, printed), f"{block}, but printed:\n{printed}"
            else:
                assert block.category == "install", block
