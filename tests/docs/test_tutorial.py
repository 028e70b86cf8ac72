"""The tutorial, from its first line to its last, in an empty folder."""

from __future__ import annotations

import shlex
from contextlib import ExitStack

from pages import DOCS, blocks
from shop_project import Project, Worker


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
                assert block.text in printed, f"{block} is not what was printed:\n{printed}"
            else:
                assert block.category == "install", block
