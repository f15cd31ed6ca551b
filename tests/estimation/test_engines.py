"""Every engine gives the table that polars gives: counts the same, sums within 1e-9."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import polars as pl
import pytest

import cmp
from cmp.estimation.engines import engine_named
from tests.closeness import assert_tables_close
from tests.estimation.test_additive import served
from tests.java import java_home

#: How far sums may be apart that engines add up in orders of their own.
APART = 1e-9

ON_SPARK = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "spark.sql.shuffle.partitions", "1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
session.sparkContext.setLogLevel("ERROR")
import cmp
for place, out in zip(sys.argv[1::2], sys.argv[2::2]):
    for by in ("memory", "query"):
        cmp.utilities(cmp.open_log(place), by=by, engine="spark").frame.write_parquet(f"{out}-{by}.parquet")
"""


@pytest.fixture
def places(tmp_path):
    """Return a log in a SQLite file, and the same exported in parts, to a place that looks like a pattern."""
    log = served(tmp_path, "continuous", scopes=("s", "ü 'quoted'"), rounds=50, reference_cards=2)
    folder = tmp_path / "scope=other"
    folder.mkdir()
    return [log.path, log.export(folder / "run[1]{a,b}*", rounds_per_part=30)]


@pytest.mark.parametrize("by", ["memory", "query"])
def test_duckdb_gives_what_polars_gives(places, by):
    for place in places:
        for reference in ("pool", "card"):
            asked = {"by": by, "reference": reference}
            log = cmp.open_log(place)
            found, expected = (cmp.utilities(log, engine=engine, **asked) for engine in ("duckdb", "polars"))
            assert_tables_close(found.frame, expected.frame, APART)
    sums = cmp.utility_statistics(cmp.open_log(places[1]), engine="duckdb")
    assert_tables_close(sums.utilities().frame, cmp.utilities(cmp.open_log(places[0])).frame, APART)


def test_spark_gives_what_polars_gives(places, tmp_path):
    home = java_home(tmp_path / "java")
    if home is None:
        pytest.skip("there is no Java")
    arguments = [str(part) for number, place in enumerate(places) for part in (place, tmp_path / f"{number}")]
    done = subprocess.run(
        [sys.executable, "-c", ON_SPARK, *arguments],
        env={**os.environ, "JAVA_HOME": home, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for number, place in enumerate(places):
        for by in ("memory", "query"):
            found = pl.read_parquet(tmp_path / f"{number}-{by}.parquet")
            expected = cmp.utilities(cmp.open_log(place), by=by).frame
            assert_tables_close(found, expected, APART)


@pytest.mark.parametrize(
    "option", [{"by": "version"}, {"carryover": "exclude"}, {"window": timedelta(hours=1)}]
)
def test_what_goes_through_rounds_one_by_one_is_for_polars(places, option):
    with pytest.raises(ValueError, match="use engine='polars'"):
        cmp.utilities(cmp.open_log(places[0]), engine="duckdb", **option)


def test_an_engine_of_another_name_is_refused_with_the_names():
    with pytest.raises(ValueError, match="'polars' or 'duckdb' or 'spark'"), engine_named("pandas"):
        pass
