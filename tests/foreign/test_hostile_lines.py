"""Whatever is in a file, a reader returns a log or names the line; nothing else is raised and nothing is run."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmp.errors import CmpError
from cmp.foreign import ForeignLogError, read_dsjson, read_jsonl
from tests.foreign.test_dsjson import decision

SCALARS = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)
ROW = {"round_id": "r", "memory_id": "m", "assigned": True, "propensity": 0.5, "outcome": 1.0}
FIELDS = sorted({*decision(0, 1, -1.0), "_skipLearn", "pdrop", "_outcomes"})


def refused(path: Path, read: Any) -> CmpError | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except CmpError as error:
            return error
    return None


def reads_or_names_the_line(path: Path, read: Any) -> None:
    error = refused(path, read)
    if error is not None:
        assert isinstance(error, ValueError)
        assert any(said in str(error) for said in ("line", "no rows", "every row is assigned"))


def written(folder: Path, content: bytes) -> Path:
    path = folder / "hostile.jsonl"
    path.write_bytes(content)
    return path


FEW = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@FEW
@given(field=st.sampled_from(FIELDS), value=VALUES)
def test_any_value_in_any_field_of_a_decision(tmp_path, field, value):
    lines = [decision(0, 1, -1.0), decision(1, 2, 0.0) | {field: value}]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    reads_or_names_the_line(written(tmp_path, content), read_dsjson)


@FEW
@given(field=st.sampled_from([*sorted(ROW), "memories"]), value=VALUES)
def test_any_value_in_any_field_of_a_row(tmp_path, field, value):
    lines = [ROW, ROW | {"memory_id": "n", "assigned": False}, ROW | {"round_id": "s"} | {field: value}]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    reads_or_names_the_line(written(tmp_path, content), read_jsonl)


@FEW
@given(content=st.binary(max_size=60), before=st.booleans())
def test_any_bytes_at_all(tmp_path, content, before):
    whole = (json.dumps(decision(0, 1, -1.0)) + "\n").encode() if before else b""
    for read in (read_dsjson, read_jsonl):
        if not (whole + content).startswith(b'{"crc32"') and whole + content:
            reads_or_names_the_line(written(tmp_path, whole + content), read)


class Evil:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a file was unpickled",))


def test_a_pickle_is_no_log(tmp_path):
    path = written(tmp_path, pickle.dumps(Evil()) + b"\n")
    for read in (read_dsjson, read_jsonl):
        with pytest.raises(ForeignLogError, match="line 1"):
            read(path)
