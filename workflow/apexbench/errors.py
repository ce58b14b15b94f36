"""The one error a person is meant to read, and what a failing disk is to a person."""

from __future__ import annotations

import errno
from pathlib import Path

_WRITABLE = "make its folder writable"
_MOUNTED = "check that its disk is mounted and well"
REMEDIES = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space or have the quota raised",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EIO: _MOUNTED,
    errno.ENODEV: _MOUNTED,
    errno.ENXIO: _MOUNTED,
    errno.ENOTCONN: _MOUNTED,
    errno.EHOSTDOWN: _MOUNTED,
    errno.ESTALE: _MOUNTED,
}
"""What a person can do about a disk, by the number of the error."""


class UserError(Exception):
    """A fault in what the user gave: one sentence that names the key or path and the remedy."""


def cannot_write(path: Path | str, error: OSError) -> UserError:
    """The sentence for a file that could not be written, whatever the disk's reason."""
    remedy = REMEDIES.get(error.errno or 0, _MOUNTED)
    return UserError(
        f"{path} cannot be written ({error.strerror}): {remedy}, then run the same command "
        "again; earlier records are intact."
    )


def disk_fault(error: BaseException | None) -> OSError | None:
    """The failing disk behind ``error``, also where a library wrapped it; None if it is another."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in REMEDIES:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
