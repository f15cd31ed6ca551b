"""What to do with a utility: decisions whose two errors cost differently."""

from __future__ import annotations

import numpy as np
import polars as pl

from cmp.errors import UndecidableError
from cmp.estimation import Utilities

__all__ = ["critical_z", "forget"]

#: What every decision says, because the method cannot say more.
LIMIT = "a utility for these queries is a measurement, not a retention policy"


def forget(u: Utilities, irreversibility: float = 10.0) -> pl.DataFrame:
    """Say which memories cost less to forget than to keep, and why; nothing is deleted.

    Parameters
    ----------
    u
        Utilities with ``reference="card"``: relative to the pool, a useful memory below the pool's mean has a negative
        number, and no sign may be acted on.
    irreversibility
        How much worse it is to forget what helps than to keep what harms; at least 1.

    Returns
    -------
    polars.DataFrame
        ``scope, [group], memory_id, utility, std_error, z, critical_z, decision, reason``; ``decision`` is ``"forget"``
        or ``"keep"``. What is not known is kept.

    Raises
    ------
    UndecidableError
        Where the utilities are relative to the pool.
    ValueError
        For an ``irreversibility`` below 1.

    Examples
    --------
    >>> from cmp.estimation import Analysis
    >>> table = pl.DataFrame({
    ...     "memory_id": ["a", "b", "c"], "utility": [-0.3, -0.1, None], "std_error": [0.1, 0.2, None],
    ...     "state": ["ESTIMATED", "ESTIMATED", "NEVER_EXPOSED"],
    ... })
    >>> forget(Utilities(table, Analysis(reference="card")))["decision"].to_list()
    ['forget', 'keep', 'keep']
    """
    if u.analysis.reference != "card":
        raise UndecidableError(
            f"these utilities are relative to the {u.analysis.reference}, where the sign of a memory's number depends "
            'on the other memories; serve with reference_cards="auto" and pass cmp.utilities(log, reference="card")'
        )
    limit = critical_z(irreversibility)
    z = (u.frame["utility"] / u.frame["std_error"]).to_numpy()
    known = np.isfinite(z) & (u.frame["state"] == "ESTIMATED").to_numpy()
    dropped = known & (z < limit)
    reasons = [
        _reason(state, value, is_known, limit)
        for state, value, is_known in zip(u.frame["state"], z, known, strict=True)
    ]
    keys = [name for name in ("metric", "scope", "group", "memory_id") if name in u.frame.columns]
    return u.frame.select(*keys, "utility", "std_error").with_columns(
        pl.Series("z", np.where(known, z, np.nan), nan_to_null=True),
        pl.lit(limit).alias("critical_z"),
        pl.Series("decision", np.where(dropped, "forget", "keep")),
        pl.Series("reason", reasons),
    )


def _reason(state: str, z: float, known: bool, limit: float) -> str:
    if not known:
        return f"{state}: what is not known is kept"
    side = "below" if z < limit else "not below"
    return f"z = {z:.2f} is {side} {limit:.2f}; {LIMIT}"


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
