"""What a person gives Snakemake on its command line, read as strictly as config.yaml.

Snakemake's own reader lets a key given twice pass, and where a file says ``__use_yte__`` it runs
what stands in it as Python, before any Snakefile: ``make`` has the flags checked first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from apexbench.config import sentences, strict_yaml
from apexbench.errors import UserError

TEMPLATE = "__use_yte__"


def check(words: Sequence[str]) -> None:
    """Snakemake's arguments: UserError for a file or a value that config.yaml might not hold."""
    check_files(map(Path, _parsed(words).configfile))
    check_values(values(words))


def values(words: Sequence[str]) -> list[str]:
    """The ``key=value`` words of ``--config`` among Snakemake's arguments."""
    return list(_parsed(words).config)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="extend", default=[])
    parser.add_argument("--config", "-C", nargs="+", action="extend", default=[])
    return parser.parse_known_args(words)[0]


def check_files(paths: Iterable[Path]) -> None:
    """The files of ``--configfile``; raises UserError."""
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path}, given to --configfile, is missing: name a file that is there."
            )
        content = strict_yaml.read(path, str(path))
        _check_numbers(content, f"{path}, given to --configfile,")
        if isinstance(content, dict) and TEMPLATE in content:
            raise UserError(
                f"{path} asks for {TEMPLATE}, with which Snakemake runs what stands in it as "
                "Python: write plain values."
            )


def check_values(entries: Iterable[str]) -> None:
    """The ``key=value`` words of ``--config``; raises UserError."""
    seen = set()
    for entry in entries:
        key, _, value = entry.partition("=")
        if key in seen:
            raise UserError(f"--config gives {key} a second time: keep one of the two.")
        seen.add(key)
        read: Any = value.strip()
        if read.startswith(("{", "[")):  # else it is one word, whatever YAML says
            read = strict_yaml.parse(value, f"--config {key}")
        _check_numbers(read, f"--config {key}")


def _check_numbers(value: Any, where: str) -> None:
    """Refuse what Snakemake's reader makes infinite, 0 or another number than what is written."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            _check_numbers(entry, where)
    elif isinstance(value, str) and strict_yaml.not_held(value):
        raise UserError(
            f"{where} has the number {sentences.show(value)}, which is too large or too near to 0 "
            "to keep: write another."
        )
