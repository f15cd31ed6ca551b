"""The interval that off-policy evaluation libraries give: a bootstrap of fixed self-normalized weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["bootstrap_fixed_weights"]

FloatArray = npt.NDArray[np.float64]


def bootstrap_fixed_weights(
    assigned: npt.NDArray[np.bool_],
    outcomes: FloatArray,
    propensity: FloatArray,
    rng: np.random.Generator,
    *,
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[FloatArray, FloatArray]:
    """Return percentile limits of "always show the memory" less "never show it", one pair a memory.

    As in Open Bandit Pipeline's self-normalized estimator: each round's inverse-probability weight is divided by the
    mean weight of the log once, and the mean of these fixed products with the outcome is bootstrapped over rounds.

    Parameters
    ----------
    assigned
        Shape (T, N).
    outcomes
        Shape (T,).
    propensity
        Shape (N,), as logged: the memory's count over T.
    rng
        Draws the resamples: multinomial counts of rounds.

    References
    ----------
    Swaminathan, A. and Joachims, T. (2015). The self-normalized estimator for counterfactual learning. NeurIPS 28.
    Saito, Y., Aihara, S., Matsutani, M. and Narita, Y. (2021). Open Bandit Dataset and Pipeline. NeurIPS Datasets.
    """
    rounds = len(outcomes)
    shown, hidden = assigned / propensity, ~assigned / (1.0 - propensity)
    products = outcomes[:, None] * (shown / shown.mean(axis=0) - hidden / hidden.mean(axis=0))
    counts = rng.multinomial(rounds, np.full(rounds, 1.0 / rounds), size=resamples)
    means = (counts / rounds) @ products
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    return low, high
