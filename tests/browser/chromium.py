"""Finds Chromium and its driver. Run as a program, it installs them if it is allowed to.

Debian's packages are ``chromium`` and ``chromium-driver``. Without them the browser tests are
skipped with a message.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

HOW_TO_INSTALL = "on Debian: apt install chromium chromium-driver"


def find() -> tuple[str, str] | None:
    """The browser and its driver, or None."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def install() -> None:
    """Install the packages if this is Debian and the user is root."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    command = ["apt-get", "install", "--yes", "--quiet", "chromium", "chromium-driver"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if find() is None:
        install()
    found = find()
    sys.stdout.write(
        f"Chromium: {found[0]}\n"
        if found
        else f"NOT TESTED: the admin page in a browser. No Chromium here; {HOW_TO_INSTALL}\n"
    )
