"""Tables that are equal but for what another order of sums leaves."""

from __future__ import annotations

import numpy as np
import polars as pl


def assert_tables_close(one: pl.DataFrame, two: pl.DataFrame, apart: float) -> None:
    """Compare names, types and rows; floats may be apart so far, absolutely and relative to the larger."""
    assert one.schema == two.schema
    for name, dtype in one.schema.items():
        if dtype.is_float():
            # the same rows are null; what is null, NaN or infinite in one is so in both
            assert (one[name].is_null() == two[name].is_null()).all(), name
            np.testing.assert_allclose(
                one[name].to_numpy(), two[name].to_numpy(), rtol=apart, atol=apart, err_msg=name
            )
        else:
            assert one[name].equals(two[name], null_equal=True), name
