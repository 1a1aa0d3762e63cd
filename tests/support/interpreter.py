"""Triton's interpreter, spared a third of its work."""

import inspect
from functools import cache
from typing import Any

from triton.language.core import is_builtin
from triton.runtime import interpreter


@cache
def builtins_of(holder: Any) -> list[tuple[str, Any]]:
    """Functions of a module or class of `triton.language` that the interpreter replaces with its own."""
    return [(name, member) for name, member in inspect.getmembers(holder) if is_builtin(member)]


def remember_builtins() -> None:
    """Have the interpreter look through `triton.language` once, no longer for every call within a kernel.

    To be called before the first launch: what the interpreter has replaced is no longer found.
    """

    def patch(holder: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins_of(holder):
            if getattr(holder, name) is member:
                interpreter._patch_attr(holder, name, member, builder, scope)

    interpreter._patch_builtin = patch
