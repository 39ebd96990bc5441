"""Python 2 scripts, read as Python 3: 2to3 rewrites the syntax, and ``meaning``
provides the semantics."""

from demitasse_caffe.python2.importing import import_as_python_2 as import_as_python_2
from demitasse_caffe.python2.importing import reader as reader
from demitasse_caffe.python2.importing import run_as_python_2 as run_as_python_2
from demitasse_caffe.python2.signs import looks_like_python_2 as looks_like_python_2
