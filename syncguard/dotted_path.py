"""From a dotted path to what it names."""

from __future__ import annotations

from importlib import import_module


def import_dotted(path: str) -> object:
    """What a path such as ``package.module.Name`` names. Raises ImportError."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ImportError("a dotted path names a module and something in it")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ImportError("the module has no such name") from None
