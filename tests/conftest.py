"""For every test: a run that passed leaves no folder outside of the clone, and a test that failed is reported."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start. A run that a script's shell started with & has SIGINT ignored, and every client inherits that: each
    version then sat through the story of Ctrl-C until the test gave up, and the next test counted its containers.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No garbage collection while pytest parses a failed test's source: CPython 3.11 ends the whole run there with "AST constructor
    recursion depth mismatch" when what is collected writes a traceback, whose carets are parsed too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """pytest removes what passing tests wrote; the folders that held it go too, unless another run's or a failed test's are there."""
    base: Path | None = getattr(getattr(config, "_tmp_path_factory", None), "_basetemp", None)
    if base is None:
        return
    if base.parent.is_dir() and _is_dangling(base.parent):
        (base.parent / "pytest-current").unlink(missing_ok=True)
    for folder in (base, base.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _is_dangling(parent: Path) -> bool:
    """Is the link to the latest run's folder all that is left besides it?"""
    return all(entry.name.startswith("pytest-current") or not any(entry.iterdir()) for entry in parent.iterdir())
