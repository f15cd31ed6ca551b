"""The command line, ``cmpolicy``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``cmpolicy`` and exit; interrupted while it still loads, it ends as it does later."""
    try:
        from cmp.cli import endings
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    endings.main()
