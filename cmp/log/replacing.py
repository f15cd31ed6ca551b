"""A file is written whole or not at all: beside its place, and moved there at the end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file; whatever goes wrong, what stood there before stands there still.

    What is no file of its own (a pipe, ``/dev/stdout``) is written to as it is, and a link is followed.

    Parameters
    ----------
    path
        The file. One that is there is replaced, and its permissions are kept.
    content
        All that it shall hold.

    Raises
    ------
    OSError
        Where the folder is not there, or cannot be written to, or has no space.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(folder + "/x.csv", b"a,b")
    ...     os.listdir(folder), Path(folder, "x.csv").read_bytes()
    (['x.csv'], b'a,b')
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    partial = target.with_name(f".{uuid4().hex}.partial")
    try:
        partial.write_bytes(content)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except OSError as error:
        # nobody knows the other file's name
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        partial.unlink(missing_ok=True)
