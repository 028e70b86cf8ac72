"""Puts a mutant into the running process: new code for functions, a new text for a Lua script.

Functions keep their identity, so every module that imported one runs the mutant. What runs only
once, while a module is imported, cannot be replaced here: a constant, a default, a class body.
"""

from __future__ import annotations

import gc
import sys
from inspect import CO_NEWLOCALS  # set for functions, not for modules and classes
from pathlib import Path
from types import CodeType, FunctionType

from syncguard.redis.scripts import Script


class NotReplaceableError(Exception):
    """The mutant changes what runs while the module is imported."""


def replace(file: Path, before: str, after: str) -> None:
    """Let this process run ``after`` where it has run ``before``, the text of the file."""
    if file.suffix == ".lua":
        _replace_script(before, after)
    else:
        _replace_functions(file, before, after)


def _replace_script(before: str, after: str) -> None:
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if isinstance(value, Script) and value.text == before:
                setattr(module, name, Script.of(value.name, after))


def _replace_functions(file: Path, before: str, after: str) -> None:
    codes: dict[CodeType, CodeType] = {}
    _pair(_compiled(file, before), _compiled(file, after), codes)
    gc.unfreeze()  # leak_check has frozen them, and frozen objects are not listed
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    gc.freeze()
    functions = [each for each in functions if each.__code__.co_filename == str(file)]
    pairs = [(each, codes[each.__code__]) for each in functions if each.__code__ in codes]
    if not pairs:
        raise NotReplaceableError
    for function, code in pairs:
        try:
            function.__code__ = code
        except ValueError:  # it needs other variables of the function around it
            raise NotReplaceableError from None


def _compiled(file: Path, text: str) -> CodeType:
    return compile(text, str(file), "exec", dont_inherit=True)


def _pair(before: CodeType, after: CodeType, codes: dict[CodeType, CodeType]) -> None:
    """Find the new code of each function. Raises if code outside of functions differs."""
    inner, inner_after = _inner(before), _inner(after)
    have_same_names = [each.co_name for each in inner] == [each.co_name for each in inner_after]
    if before.co_flags & CO_NEWLOCALS:
        codes[before] = after
    elif not have_same_names or _own(before) != _own(after):
        raise NotReplaceableError
    if have_same_names:
        for one, other in zip(inner, inner_after, strict=True):
            _pair(one, other, codes)


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _own(code: CodeType) -> tuple[object, ...]:
    """What a module or a class body does itself."""
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, constants, code.co_names
