from __future__ import annotations

import sys

import numpy as np
import pytest

from cmp.errors import MissingExtraError
from cmp.estimation import estimate


@pytest.fixture
def table():
    return estimate([[1, 0], [0, 1], [1, 0], [0, 1]], [1.0, 0.0, 1.0, 0.5])


def test_a_missing_extra_is_named(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="plot"):
        table.plot()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        table.to_pandas()


def test_a_plot_goes_into_the_axes_given(table):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert table.plot(axes, top=1) is axes
    assert len(axes.get_yticks()) == 1
    assert [0.0, 0.0] in [list(line.get_xdata()) for line in axes.lines], "no line where nothing helps"


def test_the_result_cannot_be_changed_by_accident(table):
    with pytest.raises(AttributeError):
        table.metric = "other"


def test_below_the_pools_mean_is_not_called_harmful():
    from dataclasses import replace

    rng = np.random.default_rng(0)
    z = np.arange(80)[:, None] % 4 == np.arange(4)
    u = estimate(z, 1.0 * z[:, 0] - z[:, 1] + rng.normal(0, 0.1, 80))
    assert "1 above the pool's mean, 1 below" in u.summary()
    assert "harmful" not in u.summary()
    against_card = replace(u, analysis=replace(u.analysis, reference="card"))
    assert "1 helpful, 1 harmful" in against_card.summary()
