"""Power and detectable effects of means are the same for gains and losses, however large the effect."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

import cmp
from cmp.evaluation.detection import Arms, mean_power

#: What scipy's noncentral t leaves of a power near 1.
ROUNDING = 1e-9


@pytest.mark.parametrize("df", [1, 3, 11.5, 100, 345.5, 1e5])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_power_rises_with_the_effect_and_is_never_unknown(df, alpha):
    """Far above its critical value the noncentral t was NaN, which a search over effects took for no power."""
    powers = [mean_power(Arms(11, 169), step / 10, 1.0, df, alpha) for step in range(120)]
    assert not any(map(math.isnan, powers))
    assert all(one <= two + ROUNDING for one, two in pairwise(powers))
    assert powers == [mean_power(Arms(11, 169), -step / 10, 1.0, df, alpha) for step in range(120)]


@pytest.mark.parametrize("rounds", [45, 85, 90, 180, 360, 720])
def test_a_detectable_gain_of_means_is_as_large_as_the_loss(rounds):
    row = cmp.plan(rounds=rounds, sd=0.4).frame.filter(rounds=rounds).row(0, named=True)
    assert row["detectable_gain"] == -row["detectable_loss"]
    least = cmp.plan(rounds=rounds, sd=0.4, effect=row["detectable_gain"]).frame.filter(rounds=rounds)
    assert least["power"].item() == pytest.approx(0.8, abs=1e-3)  # the search stops within this
