"""Draws that are functions of a key: the same in every process, on every host, under every library version.

Nothing here uses a library's generator, whose stream may change between versions, or Python's salted ``hash``.
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["key_of", "keyed_fraction", "keyed_permutation", "keyed_sample"]

_BITS = 128


def key_of(*parts: object) -> int:
    """Return a 128-bit key of a tuple of strings and integers; different tuples give independent keys.

    Examples
    --------
    >>> key_of("draw", 1, "ab") == key_of("draw", 1, "ab"), key_of("draw", 1, "ab") == key_of("draw", 1, "a", "b")
    (True, False)
    """
    digest = blake2b(digest_size=_BITS // 8)
    for part in parts:
        content = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return int.from_bytes(digest.digest(), "little")


def keyed_fraction(key: int) -> float:
    """Return a number in [0, 1), uniform over keys.

    Examples
    --------
    >>> 0 <= keyed_fraction(key_of("holdout", "r1")) < 1
    True
    """
    return (key >> (_BITS - 53)) / (1 << 53)


def keyed_sample(key: int, n: int, k: int) -> tuple[int, ...]:
    """Return ``k`` of ``range(n)``, every set equally likely over keys, in an order that is uniform too.

    Robert Floyd's method (Bentley and Floyd 1987): cost depends on ``k``, not on ``n``.

    Raises
    ------
    ValueError
        Where ``k`` is not between 0 and ``n``.

    References
    ----------
    Bentley, J. and Floyd, B. (1987). A sample of brilliance. Communications of the ACM 30(9), 754-757.

    Examples
    --------
    >>> sorted(keyed_sample(7, 5, 5))
    [0, 1, 2, 3, 4]
    """
    if not 0 <= k <= n:
        raise ValueError(f"cannot draw {k} of {n}")
    chosen: list[int] = []
    for step, top in enumerate(range(n - k, n)):
        drawn = _below(key_of(key, step), top + 1)
        # Floyd's second sequence: a repeat is replaced by the new top, put behind the one it repeats
        if drawn in chosen:
            chosen.insert(chosen.index(drawn) + 1, top)
        else:
            chosen.insert(0, drawn)
    return tuple(chosen)


def keyed_permutation(key: int, n: int) -> tuple[int, ...]:
    """Return ``range(n)`` in an order that is uniform over keys."""
    return keyed_sample(key, n, n)


def _below(key: int, bound: int) -> int:
    """Map a 128-bit key to ``range(bound)``; the bias is below bound / 2**128."""
    return (key * bound) >> _BITS
