"""Runs the examples of one page, in order, in the shop: ``run_page.py PAGE [CATEGORY]``.

A program of its own, so that pages can neither help nor harm each other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pages import blocks_of
from shop_project import ADDRESS

SITE = Path(__file__).parent / "shopsite"


def main(page: Path, category: str) -> None:
    sys.path.insert(0, str(SITE))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(category, page):
        text = block.text.replace(
            ADDRESS, os.environ.get("SHOP_REDIS_URL", ADDRESS).removesuffix("0")
        )
        # Empty lines in front: a traceback then names the line of the page.
        code = compile("\n" * (block.line - 1) + text, str(page), "exec")
        exec(code, names)  # noqa: S102 - our own pages


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "run")
