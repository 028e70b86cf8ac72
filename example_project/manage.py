"""Django's command line: ``python example_project/manage.py syncguard_status``."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    if "EXAMPLE_DATABASE" not in os.environ:
        (Path(__file__).resolve().parent / "var").mkdir(exist_ok=True)
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
