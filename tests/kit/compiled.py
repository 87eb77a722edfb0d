"""Tests are compiled once for all workers: each worker imports every test, and would compile them all for itself.

What was compiled is kept also where Python is told to keep nothing (PYTHONDONTWRITEBYTECODE).
"""

import compileall
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def compile_for_workers(config: pytest.Config, folder: Path) -> None:
    """Compiles what is new in `folder`, on all processors. Does nothing but in the process that starts the workers."""
    if config.option.dist == "no" or hasattr(config, "workerinput"):
        return
    files = sorted(folder.rglob("*.py"))
    processors = os.cpu_count() or 1
    fork = get_context("fork")
    shares = [fork.Process(target=_compile, args=(config, files[first::processors])) for first in range(processors)]
    for share in shares:
        share.start()
    for share in shares:
        share.join()


def _compile(config: pytest.Config, files: Sequence[Path]) -> None:
    patterns = ("conftest.py", *config.getini("python_files"))
    for file in files:
        if any(fnmatch(file.name, pattern) for pattern in patterns):
            _compile_with_asserts_rewritten(config, file)
        else:
            compileall.compile_file(file, quiet=2)


def _compile_with_asserts_rewritten(config: pytest.Config, file: Path) -> None:
    """As pytest 9.2 does when it imports a test, into the file in which it looks first."""
    kept = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept.parent):
        source_hash, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)
