"""Compile a layer's Python files beside them. Run by the interpreter that will import them; stdlib only.

Importing modal without .pyc costs 0.8 s more for every container. Packages that nobody edits are trusted without looking
(unchecked hash); the user's own files are compared by hash at import, for a program may write over them.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys

TRUSTED = ("/pkg/", "/__modal/")


def compile_tree(root: str) -> None:
    """Every .py below `root` that has no .pyc yet. Files that don't compile are left: Python 2 templates, broken user code."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            if not name.endswith(".py"):
                continue
            path = os.path.join(folder, name)
            target = importlib.util.cache_from_source(path)
            if os.path.exists(target):
                continue
            inside = path[len(root):]
            try:
                py_compile.compile(path, target, inside, doraise=True, invalidation_mode=_mode(inside), quiet=2)
            except (py_compile.PyCompileError, OSError, ValueError, RecursionError):
                continue


def _mode(inside: str) -> py_compile.PycInvalidationMode:
    trusted = inside.startswith(TRUSTED)
    return py_compile.PycInvalidationMode.UNCHECKED_HASH if trusted else py_compile.PycInvalidationMode.CHECKED_HASH


if __name__ == "__main__":
    compile_tree(sys.argv[1].rstrip("/"))
