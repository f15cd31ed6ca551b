"""``python -m cmp`` is ``cmpolicy``."""

from cmp.cli import main

if __name__ == "__main__":
    main()
