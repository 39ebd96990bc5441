"""Translation of the source of a Python 2 module into the syntax tree of a Python 3 module."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from demitasse import ModelError

_TRUE_DIVISION = re.compile(
    r"^from[ \t]+__future__[ \t]+import\b(?:[^\n#]|\\\n|(?<=[(,])\s*\n)*\bdivision\b", re.MULTILINE
)
_MEANING = "demitasse_caffe.python2.meaning"
_MEMORY = "demitasse_caffe.python2.text_and_bytes"
_BUILTINS = {"cmp", "file", "open"}
"""Names of builtins that no longer exist or do something else; they apply if the module does not define
them itself."""
_IN_BYTES = {
    *("Delete", "Get", "Put", "delete", "get", "put", "set_key", "set_range"),
    *("FromString", "MergeFromString", "ParseFromString"),
}
"""Methods of databases and messages that take bytes."""
_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def source_of(data: bytes) -> str:
    """Return the text of a source file in the encoding that it declares. If it declares none and is not
    UTF-8, read it as Latin-1, like comments of that time."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def translated(source: str, path: str, *, packaged: bool = False) -> ast.Module:
    """Return the module in Python 3. A ``packaged`` module can import what lies beside it. Raise
    SyntaxError if it is neither Python 2 nor 3, and ModelError if this Python no longer has 2to3."""
    division, refactored = not _TRUE_DIVISION.search(source), _refactoring(packaged)
    try:
        text = refactored(source if source.endswith("\n") else source + "\n", path)
    except _syntax_errors():
        text = source  # it may already be Python 3
    try:
        tree = ast.parse(text, path)
    except TabError:
        tree = ast.parse(_with_spaces(text), path)
    meaning = _Meaning(division, _bound(tree))
    meaning.visit(tree)  # in place: a module stays that module
    ast.fix_missing_locations(tree)
    if meaning.used:
        names = [ast.alias(name, _own(name)) for name in sorted(meaning.used)]
        header = ast.ImportFrom(_MEANING, names, 0)
        first = int(ast.get_docstring(tree, clean=False) is not None)
        for node in tree.body[first:]:  # nothing may come before these
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                break
            first += 1
        tree.body.insert(first, ast.fix_missing_locations(header))
    return tree


@cache
def _refactoring(packaged: bool) -> Callable[[str, str], str]:
    library = _library()
    made = importlib.import_module(f"{library}.refactor")
    fixers = made.get_fixers_from_package(f"{library}.fixes")
    # 2to3's import fixer looks for modules beside a file, even if the file is a script.
    tool = made.RefactoringTool(
        [each for each in fixers if packaged or not each.endswith(".fix_import")]
    )
    return lambda source, path: str(tool.refactor_string(source, path))


@cache
def _library() -> str:
    """Return the name of 2to3's library: Python's own, or its successor. Raise ModelError if
    there is neither."""
    for name in ("lib2to3", "fissix"):
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python's own, removed in 3.13
            importlib.import_module(f"{name}.refactor")
            return name
    raise ModelError(
        "Python 2 is read by lib2to3, which Python has up to 3.12, or by fissix: pip install fissix"
    )


def _syntax_errors() -> tuple[type[Exception], ...]:
    grammar, tokens = (
        importlib.import_module(f"{_library()}.pgen2.{each}") for each in ("parse", "tokenize")
    )
    return grammar.ParseError, tokens.TokenError, IndentationError


def _with_spaces(text: str) -> str:
    """Return the text with tabs in indents replaced by as many spaces as they meant in Python 2."""
    lines = text.split("\n")
    bodies = [line.lstrip(" \t") for line in lines]
    indents = [line[: len(line) - len(body)] for line, body in zip(lines, bodies, strict=True)]
    return "\n".join(indent.expandtabs(8) + body for indent, body in zip(indents, bodies, strict=True))


def _own(name: str) -> str:
    """Return the name by which a module calls a function of ``meaning``, such as
    ``rounded`` for round."""
    if name in _BUILTINS:
        return name
    return "round" if name == "rounded" else f"_python2_{name}"


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that are bound anywhere in a module."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store() | ast.Del()) | ast.arg(name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name, other):
                found.add(other or name)
    return found


class _Meaning(ast.NodeTransformer):
    """Replaces what has another meaning now, or none, by calls of ``meaning``, unless the module has
    ``bound`` the name. ``used`` collects the names of the functions called."""

    def __init__(self, division: bool, bound: set[str]) -> None:
        self._division, self._bound = division, bound
        self._pickle: set[str] = set()
        self._io: set[str] = set()
        self.used: set[str] = set()

    def visit_Import(self, node: ast.Import) -> ast.Import:
        """Record the names under which pickle and io are imported."""
        self._pickle |= {each.asname or each.name for each in node.names if each.name == "pickle"}
        self._io |= {each.asname or each.name for each in node.names if each.name == "io"}
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """Import StringIO, which 2to3 takes from io, from where it also holds bytes."""
        if node.module == "io" and [each.name for each in node.names] == ["StringIO"]:
            node.module = _MEMORY
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Replace calls that read a pickle (Python 2 wrote its strings as bytes) or write one,
        that get an array's bytes, advance an iterator or a database's cursor, give bytes to a
        database or a message, or sort by a comparison function."""
        self.generic_visit(node)
        plain = not (node.args or node.keywords)
        by_comparison = any(word.arg == "cmp" for word in node.keywords)
        match node.func:
            case ast.Attribute(owner, "tostring") if plain:
                return self._call("bytes_of", node, owner)
            case ast.Attribute(owner, "next") if plain:
                return self._call("advanced", node, owner)
            case ast.Name("next") if len(node.args) == 1 and "next" not in self._bound:
                return self._call("advanced", node, *node.args)
            case ast.Name("sorted") if (node.args[1:] or by_comparison) and "sorted" not in self._bound:
                return self._call("in_order", node, *node.args, keywords=node.keywords)
            case ast.Attribute(owner, "sort") if node.args or by_comparison:
                return self._call("put_in_order", node, owner, *node.args, keywords=node.keywords)
            case ast.Attribute(owner, name) if name in _IN_BYTES and node.args:
                first = [owner, ast.copy_location(ast.Constant(name), node)]
                return self._call("called", node, *first, *node.args, keywords=node.keywords)
            case ast.Attribute(ast.Name(name), "load" | "loads" as how) if name in self._pickle:
                if not node.keywords:
                    node.keywords.append(ast.keyword("encoding", ast.Constant("latin-1")))
                if how == "load":
                    self._in_bytes(node, 0)
            case ast.Attribute(ast.Name(name), "dump") if name in self._pickle:
                self._in_bytes(node, 1)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace a division."""
        self.generic_visit(node)
        if not (self._division and isinstance(node.op, ast.Div)):
            return node
        return self._call("divided", node, node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign:
        """Replace a division that assigns to the dividend."""
        self.generic_visit(node)
        if self._division and isinstance(node.op, ast.Div):
            node.op = ast.FloorDiv()
            node.value = self._call("Divisor", node.value, node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace a comparison of two values."""
        self.generic_visit(node)
        order = _ORDERS.get(type(node.ops[0]))
        if len(node.ops) > 1 or order is None:
            return node
        return self._call("ordered", node, ast.Constant(order), node.left, node.comparators[0])

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Record uses of ``round``, and of builtins that no longer exist or do something else."""
        if isinstance(node.ctx, ast.Load):
            self.used |= {"rounded"} if node.id == "round" else {node.id} & _BUILTINS - self._bound
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace access to an exception's message, and to a file in memory."""
        self.generic_visit(node)
        if node.attr == "StringIO" and isinstance(node.value, ast.Name) and node.value.id in self._io:
            self.used.add("StringIO")
            return ast.copy_location(ast.Name(_own("StringIO"), ast.Load()), node)
        if node.attr == "message" and isinstance(node.ctx, ast.Load):
            return self._call("message_of", node, node.value)
        return node

    def _in_bytes(self, node: ast.Call, number: int) -> None:
        """Make an argument, a file that may have been opened as text, be read or written as bytes."""
        if number < len(node.args):
            node.args[number] = self._call("binary", node.args[number], node.args[number])

    def _call(
        self, name: str, at: ast.expr, *arguments: ast.expr, keywords: Sequence[ast.keyword] = ()
    ) -> ast.Call:
        self.used.add(name)
        made = ast.Call(ast.Name(_own(name), ast.Load()), list(arguments), list(keywords))
        return ast.copy_location(made, at)
