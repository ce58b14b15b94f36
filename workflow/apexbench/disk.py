"""What a full, read-only or lost disk is to a person: one sentence, and what to do."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path

from apexbench.errors import UserError

LEAST_FREE_BYTES = 64 << 20
"""Many times the records of preset full (2 MiB), for figures, logs and Snakemake's notes too."""

LEAST_FREE_FILES = 1000
"""Records, logs and Snakemake's notes of preset full are some hundreds."""

_WRITABLE = "make its folder writable"
_ELSEWHERE = "name a path whose folders are folders"
_MOUNTED = "check that its disk is mounted and well"
REMEDIES = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space or have the quota raised",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EEXIST: _ELSEWHERE,
    errno.ENOTDIR: _ELSEWHERE,
    errno.EIO: _MOUNTED,
    errno.ENODEV: _MOUNTED,
    errno.ENXIO: _MOUNTED,
    errno.ENOTCONN: _MOUNTED,
    errno.EHOSTDOWN: _MOUNTED,
    errno.ESTALE: _MOUNTED,
}
"""What a person can do about a disk, by the number of the error."""
FAULTS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.ENOTCONN,
    errno.ESTALE,
}
"""Errors that are of the disk for sure: a missing permission may be of a program or a device."""


def a_file(path: Path | None) -> Path | None:
    """``path``, which is to be written: UserError where a device, a pipe or a folder lies there.

    A new file takes the old one's place under its name, also that of a device: and a pipe would
    hold up its writer until somebody reads.
    """
    if path is not None and path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file, and is left as it is: name another path.")
    return path


def a_folder(path: Path | None) -> Path | None:
    """``path``, the folder of a run or of what is written: UserError where another thing lies."""
    if path is not None and path.exists() and not path.is_dir():
        raise UserError(f"{path} is not a folder, and is left as it is: name another path.")
    return path


def cannot_write(path: Path | str, error: OSError) -> UserError:
    """The sentence for a file that could not be written, whatever the disk's reason."""
    remedy = REMEDIES.get(error.errno or 0, _MOUNTED)
    return UserError(
        f"{path} cannot be written ({error.strerror}): {remedy}, then run the same command "
        "again; earlier records are intact."
    )


def any_file(error: OSError) -> UserError | None:
    """The sentence for an error that no one expected, of whatever file; None if none is known."""
    if error.errno not in REMEDIES:
        return None
    return UserError(
        f"{error.filename or 'a file'}: {error.strerror}: {REMEDIES[error.errno]}, then run the "
        "same command again; earlier records are intact."
    )


def disk_fault(error: BaseException | None) -> OSError | None:
    """The failing disk behind ``error``, also where a library wrapped it; None if it is another."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in FAULTS:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def check_folder(project: Path) -> None:
    """Whether Snakemake can write in ``project``; it has a traceback for a no."""
    notes = project / ".snakemake"
    results = project / "results"
    made = [results, *results.glob("records/**/"), *results.glob("logs/")]
    place = notes
    try:
        notes.mkdir(exist_ok=True)
        for place in (notes, *filter(Path.is_dir, made)):
            if not os.access(place, os.W_OK | os.X_OK):
                read_only = os.statvfs(place).f_flag & os.ST_RDONLY
                code = errno.EROFS if read_only else errno.EACCES
                raise OSError(code, os.strerror(code))
    except OSError as error:
        raise UserError(
            f"{place} cannot be written ({error.strerror}): make it writable, or run a copy of "
            "the project elsewhere."
        ) from error


def check_outputs(results: Path) -> None:
    """Refuse to begin where a run's output is write-protected: Snakemake would only find it later.

    Not records: those are written once, and one that is read-only is as good as another. Raises
    UserError.
    """
    places = [
        *results.glob("*"),
        *results.glob("report/*/*"),
        *results.glob("records/**/index.json"),
    ]
    for place in sorted(places):
        if place.exists() and not place.is_symlink() and not os.access(place, os.W_OK):
            raise UserError(
                f"{place} is write-protected, and this run may make it again: allow it with "
                f"`chmod u+w {shlex.quote(str(place))}`, or move it away, then run the same "
                "command again; earlier records are intact."
            )


def check_space(*folders: Path) -> None:
    """Refuse to begin on a disk that is about to be full: UserError names it."""
    for folder in folders:
        disk = os.statvfs(folder)
        if disk.f_files and disk.f_favail < LEAST_FREE_FILES:
            raise UserError(
                f"{folder} is on a disk that can hold {disk.f_favail} more files, and a run needs "
                f"at least {LEAST_FREE_FILES}: remove some, then run the same command again."
            )
        total, _, free = shutil.disk_usage(folder)
        if total and free < LEAST_FREE_BYTES:  # some network file systems do not tell: all zero
            raise UserError(
                f"{folder} is on a disk with {free >> 20} MiB free, and a run needs at least "
                f"{LEAST_FREE_BYTES >> 20} MiB: free some space, then run the same command again."
            )
