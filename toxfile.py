"""For tox: which supported Python is the newest that is installed. "coverage" runs with it."""

from __future__ import annotations

import os
import subprocess

SUPPORTED = ("3.13", "3.12", "3.11", "3.10")


def newest_python() -> str:
    for version in SUPPORTED:
        try:
            # Running it is the only proof: pyenv's shims exist for versions that are switched off.
            subprocess.run([f"python{version}", "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return f"python{version}"
    return "python3"


os.environ.setdefault("SYNCGUARD_NEWEST_PYTHON", newest_python())
