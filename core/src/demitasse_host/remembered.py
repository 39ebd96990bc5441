"""What numba works out again and again while it compiles a loop, worked out once."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object another attribute for the duration of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Have numba compile the same code in four fifths of the time for the duration of the block, as far
    as this version of numba is one that is known. Only for a thread that holds numba's lock.

    - The signatures of operators and built-in functions for numbers and arrays, which follow from the
      types of their arguments alone, are asked for some hundred times per loop, each time from all
      functions that were ever declared for the operator.
    - What variables are live where is determined anew behind each of ten passes, and read behind none of
      them. It is determined here when somebody reads it.
    - The size of a type is found out by having LLVM parse a module of that type.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, value in _swaps():
            stack.enter_context(swapped(owner, name, value))
        yield


@cache
def _swaps() -> list[tuple[Any, str, Any]]:
    """Return the methods to replace, each as its class, its name and what replaces it."""
    found = list[tuple[Any, str, Any]]()
    for make in (_signatures, _entries, _sizes):
        with contextlib.suppress(ImportError, AttributeError, _UnknownError):  # other versions of numba
            found.append(make())
    return found


class _UnknownError(Exception):
    """Raised for a method that does not do what is done once here."""


def _known(method: Any, parameters: int, uses: set[str] | None = None) -> Any:
    """Return a method that has so many parameters and, if ``uses`` is given, names just these. Raises
    _UnknownError for any other."""
    code = method.__code__
    if code.co_argcount != parameters or uses not in (None, {*code.co_names}):
        raise _UnknownError
    return method


def _signatures() -> tuple[Any, str, Any]:
    owner = importlib.import_module("numba.core.types.functions").BaseFunction
    types: Any = importlib.import_module("numba.core.types")
    ask: Callable[..., Any] = _known(owner.get_call_type, 4)
    plain = (
        types.Number,
        types.Boolean,
        types.Literal,
        types.Array,
        types.BaseTuple,
        types.SliceType,
        types.RangeType,
    )
    known: dict[
        int, tuple[Any, dict[Any, Any]]
    ] = {}  # with the function, whose id is its own while it lives

    def get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        key = function.typing_key
        if kws or getattr(key, "__module__", "") not in ("_operator", "builtins"):
            return ask(function, context, args, kws)
        _, signatures = known.setdefault(id(function), (function, {}))
        asked = context, tuple(args)
        if (signature := signatures.get(asked)) is None:
            signature = ask(function, context, args, kws)
            # Not what was compiled to answer the question: that depends on more than the types.
            if function.get_impl_key(signature) is key and all(isinstance(each, plain) for each in args):
                signatures[asked] = signature
        return signature

    return owner, "get_call_type", get_call_type


def _entries() -> tuple[Any, str, Any]:
    module: Any = importlib.import_module("numba.core.postproc")
    analysis: Any = importlib.import_module("numba.core.analysis")
    owner, lifetimes = module.PostProcessor, module.VariableLifetime
    canonical = module.transforms.canonicalize_cfg
    run: Callable[..., Any] = _known(owner.run, 3, _STEPS)

    class Entries(dict[Any, Any]):
        """The variables that are live at the entry of each block of a function."""

        def __init__(self, function: Any) -> None:
            self._function = function

        def __missing__(self, block: Any) -> Any:
            lifetime = self._function.variable_lifetime
            maps = lifetime.usedefs.defmap, lifetime.deadmaps.combined
            live = analysis.compute_live_variables(lifetime.cfg, self._function.blocks, *maps)
            self.update((each, live[at]) for at, each in self._function.blocks.items())
            if block not in self:
                raise KeyError(block)
            return self[block]

    def lazily(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        code = function.func_id.code
        if function.is_generator or _READ.intersection(code.co_names + code.co_freevars):
            run(self, emit_dels, extend_lifetimes)
            return
        function.blocks = canonical(function.blocks)
        function.variable_lifetime = lifetimes(function.blocks)
        function.block_entry_vars = Entries(function)
        function.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    return owner, "run", lazily


_STEPS = {
    *("func_ir", "blocks", "transforms", "canonicalize_cfg"),
    *("VariableLifetime", "variable_lifetime", "cfg", "usedefs", "defmap", "deadmaps", "combined"),
    *("analysis", "compute_live_variables", "items", "block_entry_vars"),
    *("is_generator", "GeneratorInfo", "generator_info", "_compute_generator_info", "_insert_var_dels"),
}
"""What the method that ``lazily`` replaces names."""

_READ = {"literal_unroll", "objmode", "objmode_context", "parallel_chunksize"}
"""What a function names for which numba reads the lifetimes of variables when it has changed the blocks
already."""


def _sizes() -> tuple[Any, str, Any]:
    owner = importlib.import_module("llvmlite.ir.types").Type
    ask: Callable[..., int] = _known(owner.get_abi_size, 3)
    known: dict[tuple[int, str], tuple[Any, int]] = {}  # with what it was asked of

    def get_abi_size(type_: Any, target_data: Any, context: Any = None) -> int:
        if context is not None:  # types of other modules may be called alike
            return ask(type_, target_data, context)
        asked = id(target_data), str(type_)
        if asked not in known:
            known[asked] = target_data, ask(type_, target_data)
        return known[asked][1]

    return owner, "get_abi_size", get_abi_size
