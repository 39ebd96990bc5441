"""How to recognise errors of a Python 2 script, so that they can be reported as such."""

from __future__ import annotations

_NAMES = [
    "basestring",
    "cmp",
    "execfile",
    "file",
    "long",
    "raw_input",
    "reduce",
    "reload",
    "unichr",
    "unicode",
    "xrange",
]
_METHODS = ["has_key", "iteritems", "iterkeys", "itervalues", "next"]
_MODULES = [
    "ConfigParser",
    "HTMLParser",
    "Queue",
    "StringIO",
    "Tkinter",
    "cPickle",
    "cStringIO",
    "commands",
    "copy_reg",
    "httplib",
    "sets",
    "urllib2",
    "urlparse",
]


def looks_like_python_2(error: BaseException) -> bool:
    """Return whether Python 2 would not have raised an error, judged by its syntax, names or modules."""
    if isinstance(error, ModuleNotFoundError):
        return error.name in _MODULES
    if isinstance(error, NameError):
        return error.name in _NAMES
    if isinstance(error, AttributeError):
        return error.name in _METHODS
    return isinstance(error, SyntaxError)
