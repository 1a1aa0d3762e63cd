"""Triton's interpreter, spared half of its work: it looks up again and again what stays as it is."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.core import is_builtin
from triton.runtime import interpreter

ARANGE = tl.arange
"""One of the functions that the interpreter replaces: a module that has another has been seen to."""


@cache
def builtins_of(holder: Any) -> list[tuple[str, Any]]:
    """Functions of a module or class of `triton.language` that the interpreter replaces with its own."""
    return [(name, member) for name, member in inspect.getmembers(holder) if is_builtin(member)]


@cache
def languages_of(function: Callable[..., Any]) -> list[Any]:
    """The modules in which a function of a kernel finds what is replaced."""
    return [value for value in function.__globals__.values() if value is tl or value is tl.core]


@cache
def numbers_and_dimensions(shape: tuple[int, ...]) -> tuple[tl.constexpr, tl.tuple]:
    return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])


def spare() -> None:
    """Have the interpreter remember what it has found. To be called before the first launch."""
    patch_language, of_scalar = interpreter._patch_lang, cache(interpreter._get_np_dtype)
    pointers, describe = np.dtype(np.uint64), tl.block_type.__init__
    described: dict[tuple[int, ...], tl.block_type] = {}

    def patch_once(function: Callable[..., Any]) -> Any:
        """For the kernel; what it calls finds all replaced."""
        if all(language.arange is not ARANGE for language in languages_of(function)):
            return interpreter._LangPatchScope()
        return patch_language(function)

    def patch_builtins(holder: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins_of(holder):
            if getattr(holder, name) is member:
                interpreter._patch_attr(holder, name, member, builder, scope)

    def numpy_type(kind: tl.dtype) -> Any:
        return pointers if isinstance(kind.scalar, tl.pointer_type) else of_scalar(kind.scalar)

    def make_tensor(tensor: tl.tensor, handle: Any, kind: tl.dtype) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
        tensor.numel, tensor.shape = numbers_and_dimensions(
            tuple(kind.shape.values) if kind.is_block() else ()
        )

    def make_block(block: tl.block_type, element: tl.dtype, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        if sizes not in described:
            describe(block, element, list(sizes))
            described[sizes] = block
        like = described[sizes]
        block.element_ty, block.shape, block.numel = element, like.shape, like.numel
        block.name = f"<{sizes}, {element}>"

    interpreter._patch_lang = patch_once
    interpreter._patch_builtin = patch_builtins
    interpreter._get_np_dtype = numpy_type
    tl.tensor.__init__ = make_tensor
    tl.block_type.__init__ = make_block
