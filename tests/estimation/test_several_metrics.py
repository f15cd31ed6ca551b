from __future__ import annotations

import polars as pl
import pytest

from cmp.estimation import differential_missingness, q_values, utilities
from tests.estimation.logs import HandMadeLog, simulated


def of_two_metrics() -> HandMadeLog:
    log = simulated(3).log
    for entry in list(log.rows["outcomes"]):
        log.add("outcomes", **{**entry, "metric": "cost", "value": entry["value"] ** 2})
    return log


def test_several_metrics_stand_in_one_table_with_q_values_over_all_of_it():
    log = of_two_metrics()
    both = utilities(log, metric=["reward", "cost"])
    assert both.frame.columns[0] == "metric"
    assert both.frame["metric"].unique(maintain_order=True).to_list() == ["reward", "cost"]
    for name in ("reward", "cost"):
        alone = utilities(log, metric=name).frame
        assert both.frame.filter(metric=name).drop("metric", "q_value").equals(alone.drop("q_value"))
    q = q_values(both.frame["p_value"].to_numpy(), "bh")
    assert both.frame["q_value"].to_list() == pl.Series(q, nan_to_null=True).to_list()
    assert "'reward, cost'" in both.summary()


def test_one_metric_in_a_list_has_its_column_and_the_same_numbers():
    log = of_two_metrics()
    assert utilities(log, metric=["cost"]).frame.drop("metric").equals(utilities(log, metric="cost").frame)


@pytest.mark.parametrize(("metric", "said"), [([], "names none"), (["reward"] * 2, "one twice")])
def test_no_metric_or_one_twice_is_refused(metric, said):
    with pytest.raises(ValueError, match=said):
        utilities(of_two_metrics(), metric=metric)


def test_a_metric_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="'nope'; it has 'cost', 'reward'"):
        utilities(of_two_metrics(), metric=["reward", "nope"])


def test_what_is_said_of_missing_outcomes_says_of_which_metric():
    found = differential_missingness(utilities(of_two_metrics(), metric=["reward", "cost"]))
    assert found.columns[0] == "metric"
    assert not found.select("metric", "scope", "memory_id").is_duplicated().any()
