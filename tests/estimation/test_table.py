from __future__ import annotations

import sys

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


def test_the_result_cannot_be_changed_by_accident(table):
    with pytest.raises(AttributeError):
        table.metric = "other"
