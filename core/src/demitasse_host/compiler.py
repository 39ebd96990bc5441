"""numba for plugins: a faster import, and compiled loops kept on disk and shared by processes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from demitasse_host.files import locked
from demitasse_host.forks import fork_between_compilations
from demitasse_host.inlining import quick_compiler
from demitasse_host.kept_loops import forget, seal, tell_lost

Loop = TypeVar("Loop", bound=Callable[..., Any])

_PATIENCE = 30.0
"""Seconds to wait for another process that compiles a loop called here; that process may be stopped."""

_ASKS = "numba.np.arraymath"  # which asks ``numba.np.linalg.ensure_blas`` when it is imported


def load_numba() -> Any:
    """Return the module numba: write ``numba = load_numba()`` instead of ``import numba``.

    When numba first compiles or loads anything, it imports SciPy's linear algebra if SciPy is installed,
    only to find out whether it can, which delays a process by 0.2 to 0.4 s. Here numba learns that SciPy
    is installed without the import. Compiling a product of matrices still imports it. From this call on,
    a fork waits until nothing is being compiled. Raises ImportError if numba is not installed."""
    import numba

    fork_between_compilations()
    try:
        linalg: Any = importlib.import_module("numba.np.linalg")
    except ImportError:  # other versions of numba have it elsewhere
        return numba
    asked = getattr(linalg, "ensure_blas", None)
    loaded = _ASKS in sys.modules or "scipy.linalg.cython_blas" in sys.modules
    if loaded or asked is None or importlib.util.find_spec("scipy") is None:
        return numba
    linalg.ensure_blas = lambda: None
    try:
        importlib.import_module(_ASKS)
    finally:
        linalg.ensure_blas = asked
    return numba


def compiled_loop(loop: Loop, *, literals: bool = True, **options: Any) -> Loop:
    """Return ``numba.njit`` of a function, without the GIL and with NumPy's division by zero (njit's
    ``options`` override this). Compiled code is kept on disk if a folder can be written.

    If several processes that use the same folder call it at once, as ranks do, one compiles it and the
    others wait, for half a minute at most in case that one was stopped. They may write their files at
    once, whatever the types: numba alone could then store one type's machine code under another's.
    Without ``literals``, the loop is compiled for the types that a calling loop passes, and not again
    for each literal number in a call. Raises ImportError if numba is not installed."""
    numba = load_numba()
    if numba.config.DISABLE_JIT:
        raise ImportError("NUMBA_DISABLE_JIT is set, but these kernels are compiled loops; unset it")
    # Nothing calls a loop from C through its wrapper, which would be a tenth of the code to compile.
    settings: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
    } | options
    if (compiler := quick_compiler()) is not None:
        settings.setdefault("pipeline_class", compiler)
    try:
        made: Any = numba.njit(cache=True, **settings)(loop)
    except RuntimeError:  # no folder for the cache can be written
        made = numba.njit(**settings)(loop)
    if not literals:
        _of_types_alone(made, numba.types.unliteral)
    if (kept := _kept(made)) is not None:
        made._cache = kept
        made.compile = partial(_compile_where_called, made, made.compile)
    return made  # type: ignore[no-any-return]


def compiled_callback(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes ``numba.cfunc`` of a function, which C calls by its ``address``. It
    is compiled at once, and kept on disk like a compiled loop. Raises ImportError if numba is not
    installed."""
    numba = load_numba()

    def decorate(loop: Callable[..., Any]) -> Any:
        try:
            from numba.core.ccallback import CFunc

            normalized = numba.core.sigutils.normalize_signature(signature)
            made: Any = CFunc(loop, normalized, locals={}, options=options)
        except (ImportError, AttributeError, TypeError):  # other versions of numba have it elsewhere
            return numba.cfunc(signature, **options)(loop)
        with suppress(RuntimeError):  # no folder for the cache can be written
            made.enable_caching()
            made._cache = _kept(made) or made._cache
        with _set("only_reads", False):  # reading a loop may have imported this one's module
            made.compile()
        return made

    return decorate


def compile_once(
    loop: Any, types: tuple[Any, ...], wait: float = 0.0, *, read_only: bool = False
) -> bool:
    """Compile a loop for numba's ``types``, or read it from disk. Among processes that keep their loops
    in the same folder, one compiles it and the others wait, for ``wait`` seconds at most. Return False
    if it is still being compiled then; with ``read_only``, if it is not on disk. Errors of numba
    propagate."""
    kept = isinstance(getattr(loop, "_cache", None), _Kept)
    if read_only and types not in loop.overloads:
        with suppress(_NotKept), _set("compiles"), _set("only_reads"):
            if kept:
                loop.compile(types)
        return types in loop.overloads
    if types in loop.overloads or not kept:
        loop.compile(types)
        return True
    with suppress(_BusyError):
        _by_one(loop, partial(loop.compile, types), wait)
        return True
    return False


def _compile_where_called(loop: Any, compile_here: Callable[[Any], Any], types: Any) -> Any:
    """Compile a loop that is called with new types; numba calls this. It does not wait for other
    processes if the loop is compiled because another loop calls it: this thread then holds numba's own
    lock, for which other threads wait."""
    compiling = partial(compile_here, types)
    if getattr(_this, "compiles", False) or _has_numbas_lock() or types in loop.overloads:
        return compiling()
    with suppress(_BusyError):
        return _by_one(loop, compiling, _PATIENCE)
    return compiling()


def _has_numbas_lock() -> bool:
    """Return whether this thread is compiling something."""
    lock: Any = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    return bool(lock.is_locked()) if hasattr(lock, "is_locked") else False


def _by_one(loop: Any, compile_here: Callable[[], Any], wait: float) -> Any:
    """Read a loop from disk, or compile it if no other process does, or read what the other one has
    kept. Raises _BusyError if the other one still compiles after ``wait`` seconds."""
    with _set("compiles"):
        with suppress(_NotKept), _set("only_reads"):
            return compile_here()
        end = time.monotonic() + wait
        while True:
            with loop._cache.compiling(f"{loop.__module__}.{loop.__name__}") as alone:
                if alone:
                    return compile_here()  # reads it if another process has made it meanwhile
            if time.monotonic() >= end:
                raise _BusyError
            time.sleep(0.02)


@contextlib.contextmanager
def _set(flag: str, value: bool = True) -> Iterator[None]:
    """Set or clear a flag of this thread for the duration of the block."""
    before = getattr(_this, flag, False)
    setattr(_this, flag, value)
    try:
        yield
    finally:
        setattr(_this, flag, before)


def _kept(made: Any) -> _Kept | None:
    """Return the files on disk of what numba has made; None if there are none, or of another kind."""
    files = getattr(made, "_cache", None)
    known = all(hasattr(files, name) for name in ("load_overload", "save_overload", "flush"))
    return _Kept(files) if known and getattr(files, "cache_path", None) else None


def _of_types_alone(made: Any, unliteral: Callable[[Any], Any]) -> None:
    compile_for = made.get_call_template

    def template(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        types = {name: unliteral(type_) for name, type_ in named.items()}
        return compile_for(tuple(map(unliteral, args)), types)

    made.get_call_template = template


class _Kept:
    """A loop's files on disk, as numba keeps them, used by one process at a time."""

    def __init__(self, files: Any) -> None:
        self._files = files
        seal(files)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_files"], name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was kept for a signature, or None. Damaged files are forgotten, and so is what a
        process that did not wait has kept under the name of another signature."""
        try:
            with self._held(shared=True):
                found = self._files.load_overload(signature, context)
        except (_NotKept, MemoryError):  # raised by a loop that this one loads; not about a file
            raise
        except OSError:  # the file cannot be read, which says nothing about its content
            found = None
        except Exception:  # noqa: BLE001 - unpickling raises anything, and so does LLVM
            found = self._load_or_forget(signature, context)
        if found is not None and isinstance(signature, tuple) and found.signature.args != signature:
            found = None
            with self._held():
                self._files.flush()
        if found is None and getattr(_this, "only_reads", False):
            raise _NotKept
        return found

    def _load_or_forget(self, signature: Any, context: Any) -> Any:
        """Return what was kept if another process has repaired it meanwhile, else remove its files."""
        with self._held():
            try:
                return self._files.load_overload(signature, context)
            except (_NotKept, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - as above
                forget(self._files, error)
                return None

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep a loop on disk, if there is room for it."""
        try:
            with self._held():
                self._files.save_overload(signature, made)
        except OSError as error:
            tell_lost(self._files.cache_path, error)

    @contextlib.contextmanager
    def compiling(self, name: str) -> Iterator[bool]:
        """Yield True if this process is the one to compile the loop, or if locks are not available."""
        with contextlib.ExitStack() as stack:
            alone = True
            with suppress(OSError):
                folder = Path(self._files.cache_path) / "compiling"
                folder.mkdir(exist_ok=True)
                alone = stack.enter_context(locked(folder / name, wait=False))
            yield alone

    @contextlib.contextmanager
    def _held(self, shared: bool = False) -> Iterator[None]:
        """Hold the folder's lock. A thread takes it only once, as loading a loop may load others."""
        if getattr(_this, "holds", False):
            yield
            return
        with contextlib.ExitStack() as stack:
            # If no lock can be written, nothing can be kept either; numba finds that out by itself.
            with suppress(OSError):
                path = Path(self._files.cache_path) / "demitasse.lock"
                stack.enter_context(locked(path, shared=shared))
            stack.callback(setattr, _this, "holds", False)
            _this.holds = True
            yield


class _NotKept(Exception):  # noqa: N818 - not an error
    """Raised if a loop is not on disk."""


class _BusyError(Exception):
    """Raised if another process is compiling a loop."""


_this = threading.local()
"""Flags of a thread: it ``holds`` the lock of a folder, it ``compiles``, it ``only_reads`` loops."""
