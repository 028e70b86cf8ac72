"""Import an object by its dotted path."""

from __future__ import annotations

from importlib import import_module


def import_dotted(path: str) -> object:
    """The object at a path such as ``package.module.Name``. Raises ImportError."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ImportError("a dotted path needs a module and a name: package.module.Name")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ImportError("the module has no such attribute") from None
