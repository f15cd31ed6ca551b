"""What to do with a utility: decisions whose two errors cost differently."""

from __future__ import annotations

__all__ = ["critical_z"]


def critical_z(irreversibility: float) -> float:
    """Return the z = utility / std_error below which forgetting a memory costs less than keeping it.

    Forgetting what helps is ``irreversibility`` times as bad as keeping what harms. Under a normal posterior,
    forget where ``irreversibility * E[u+] < E[u-]``; the critical z solves ``l z Phi(z) + z Phi(-z) + (l - 1)
    phi(z) = 0``.

    Parameters
    ----------
    irreversibility
        At least 1; 1 forgets whatever is estimated below 0.

    Raises
    ------
    ValueError
        For values below 1, or not finite.

    Examples
    --------
    >>> [round(critical_z(irreversibility), 3) for irreversibility in (2, 10, 100)]
    [-0.276, -0.901, -1.721]
    """
    from math import exp, isfinite, pi, sqrt

    from scipy.optimize import brentq
    from scipy.special import ndtr

    if not (isfinite(irreversibility) and irreversibility >= 1.0):
        raise ValueError(f"irreversibility={irreversibility!r}; give a finite number of at least 1")
    if irreversibility == 1.0:
        return 0.0

    def regret(z: float) -> float:
        density = exp(-z * z / 2) / sqrt(2 * pi)
        return float(irreversibility * z * ndtr(z) + z * ndtr(-z) + (irreversibility - 1) * density)

    # E[u+] falls like exp(-z^2/2) / z^2, so this bracket holds for every double
    return float(brentq(regret, -40.0, 0.0, xtol=1e-14, rtol=1e-14))
