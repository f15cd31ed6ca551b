"""The report is one file that needs nothing, hides nothing and runs nothing."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from html.parser import HTMLParser

import polars as pl
import pytest

import cmp
from cmp.report import PARTS, write_report
from cmp.report.forest import Estimate, draw_forest
from tests.serving.stores import store, wrapped

VOID = {"meta", "line", "circle", "br"}

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>alert(2)</script>",
    "javascript:alert(3)",
    "&lt;already&gt;",
    "\x00\x1b[31m\u202egnp.exe",
    "{{7*7}}${7*7}",
    "x" * 300,
]


class Reader(HTMLParser):
    """Every tag with its attributes, and the text; raises where tags do not nest."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def serve(folder, ids=None, rounds=60, **settings):
    held = store(10, ["m1"]) if ids is None else None
    settings = {"slots": 3, "random_slots": 1, **settings}
    if held is not None:
        memory = wrapped(folder, held, **settings)
    else:
        memory = cmp.wrap(
            lambda query: [], list_ids=lambda scope: ids, get=lambda ids, scope: list(ids), seed=1,
            log=folder / "x.db", **settings,
        )  # fmt: skip
    ask(memory, rounds, "s" if ids is None else "<i>scope</i>")
    return memory


def ask(memory, rounds, scope="s"):
    for number in range(rounds):
        context = memory.retrieve("q", scope=scope, group=f"<u>q{number % 2}</u>")
        memory.record(context.round_id, float(number % 3 == 0))
    memory.flush()


def read(memory, folder, **options):
    path = write_report(memory.log, folder / "report.html", **options)
    return Reader(path.read_text("utf-8"))


def test_the_report_says_what_was_asked_found_and_checked(tmp_path):
    done = []
    page = read(serve(tmp_path), tmp_path, advance=done.append)
    for words in (
        "What was asked",
        "reward",
        "60, 60 of them randomized",
        "What is known",
        "ESTIMATED",
        "Utilities",
    ):
        assert words in page.text
    assert "ALWAYS_RANKED" in page.text
    assert "Can the log be trusted" in page.text
    assert "No check failed." in page.text
    assert done == [1] * PARTS
    assert sum(tag == "circle" for tag, _ in page.tags) == 9


def test_relative_to_the_pool_no_sign_goes_without_its_warning(tmp_path):
    assert "the sign is not" in read(serve(tmp_path), tmp_path).text
    cards = serve(tmp_path / "c", reference_cards=3) if (tmp_path / "c").mkdir() is None else None
    page = read(cards, tmp_path, reference="card")
    assert "the sign is not" not in page.text
    assert "not a retention policy" in page.text
    assert "cards are alike (A/A)" in page.text


@pytest.mark.parametrize("by", ["memory", "query"])
def test_hostile_ids_and_queries_are_text_and_nothing_else(tmp_path, by):
    memory = serve(tmp_path, HOSTILE, rounds=80)
    page = read(memory, tmp_path, by=by, title="<script>title</script>")
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "i", "u", "a", "iframe", "link", "object", "form", "base"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    for memory_id in (HOSTILE[0], HOSTILE[2], "&lt;already&gt;", "<i>scope</i>"):
        assert memory_id in page.text
    raw = (tmp_path / "report.html").read_text("utf-8")
    assert "\x00" not in raw
    assert "\x1b" not in raw
    assert "\u202e" not in raw


def test_the_file_needs_no_network(tmp_path):
    raw = write_report(serve(tmp_path).log, tmp_path / "report.html").read_text("utf-8")
    assert re.findall(r"https?:|url\(|@import|//[a-z]", raw) == []
    assert "default-src 'none'" in raw


def test_labels_add_support_and_auc(tmp_path):
    memory = serve(tmp_path)
    labels = tmp_path / "labels.qrels"
    labels.write_text("<u>q0</u> 0 m5 1\n<u>q1</u> 0 m4 1\n")
    page = read(memory, tmp_path, by="query", qrels=labels)
    assert "never own" in page.text
    assert "AUC of key memories" in page.text
    labels.write_text("other 0 m5 1\n")
    assert "The labels do not fit this log" in read(memory, tmp_path, qrels=cmp.read_qrels(labels)).text


def test_labels_add_the_auc_that_the_page_promises_whatever_a_row_is(tmp_path):
    """In scope A memory c is worth 1, in B memory b; by memory the comparison is within scope."""
    memory = two_scopes(tmp_path)
    labels = pl.DataFrame({"query_id": ["q", "q"], "scope": ["A", "B"], "memory_id": ["c", "b"]})
    for by, within in (("memory", "scope"), ("query", "query")):
        text = read(memory, tmp_path, by=by, qrels=labels).text
        assert f"AUC of key memories against others, within {within}" in text
        expected = cmp.auc(cmp.utilities(memory.log, by=by), labels, within)
        assert f"{expected.auc:.4g}" in text[text.index("AUC of key memories") :]
        assert expected.auc == 1.0
    assert "not of their versions" in read(memory, tmp_path, by="version", qrels=labels).text


def two_scopes(folder):
    memory = cmp.wrap(
        lambda query, scope: ["a"], list_ids=lambda scope: "abcd", get=lambda ids, scope: list(ids), slots=2,
        random_slots=1, log=folder / "x.db", seed=1,
    )  # fmt: skip
    for _ in range(60):
        for scope, worth in (("A", "c"), ("B", "b")):
            context = memory.retrieve("q", scope=scope, group="q")
            memory.record(context.round_id, float(worth in list(context)))
    memory.flush()
    return memory


@pytest.mark.parametrize("by", ["memory", "query", "version"])
def test_no_two_rows_of_the_drawing_have_one_label(tmp_path, by):
    """The same ids in two scopes."""
    memory = two_scopes(tmp_path)
    write_report(memory.log, tmp_path / "report.html", by=by)
    raw = (tmp_path / "report.html").read_text("utf-8")
    labels = [label.rpartition(": ")[0] for label in re.findall(r"<g><title>(.*?)</title>", raw)]
    assert len(labels) == cmp.utilities(memory.log, by=by).frame["utility"].is_not_null().sum()
    assert len(set(labels)) == len(labels)
    assert {label.split(" ")[0] for label in labels} == {"A", "B"}


def test_versions_of_a_memory_are_told_apart_in_the_drawing(tmp_path):
    text = {"version": "old"}
    memory = cmp.wrap(
        lambda query: [], list_ids=lambda: "abcd", get=list, text_of=lambda item: item + text["version"], slots=1,
        random_slots=1, log=tmp_path / "x.db", seed=1, scope=cmp.EVERYTHING,
    )  # fmt: skip
    for version in ("old", "new"):
        text["version"] = version
        for number in range(40):
            memory.record(memory.retrieve("q").round_id, float(number % 2))
    memory.flush()
    raw = write_report(memory.log, tmp_path / "r.html", by="version").read_text("utf-8")
    labels = [label.rpartition(": ")[0] for label in re.findall(r"<g><title>(.*?)</title>", raw)]
    assert len(labels) == len(set(labels)) == 8


def test_the_limits_of_an_auc_are_of_the_level_asked_for(tmp_path):
    memory = serve(tmp_path)
    labels = tmp_path / "labels.qrels"
    labels.write_text("<u>q0</u> 0 m5 1\n<u>q1</u> 0 m4 1\n")
    at = {level: read(memory, tmp_path, by="query", qrels=labels, level=level).text for level in (0.8, 0.99)}
    of_auc = [text[text.index("AUC of key memories") :] for text in at.values()]
    assert of_auc[0] != of_auc[1]


def test_labels_that_cannot_be_read_are_refused_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr("cmp.report.writing.diagnose", lambda *_: pytest.fail("it was at work already"))
    with pytest.raises(cmp.DatasetError, match=r"typo\.qrels"):
        write_report(serve(tmp_path).log, tmp_path / "report.html", qrels=tmp_path / "typo.qrels")


def test_held_out_rounds_add_what_exploring_cost(tmp_path):
    assert "What exploring cost" in read(serve(tmp_path, holdout=0.3), tmp_path).text


def test_all_of_a_report_is_of_the_moment_the_log_was_read(tmp_path):
    """After each part ten rounds more are asked: the page is as if nobody had."""
    memory = serve(tmp_path, holdout=0.3)
    labels = tmp_path / "labels.qrels"
    labels.write_text("<u>q0</u> 0 m5 1\n<u>q1</u> 0 m4 1\n")
    quiet = read(memory, tmp_path, by="query", qrels=labels)
    busy = read(memory, tmp_path, by="query", qrels=labels, advance=lambda _: ask(memory, 10))
    assert memory.log.rounds().collect().height == 60 + 10 * PARTS
    assert busy.words == quiet.words
    states = re.search(r"log keeps its contract \* (PASS|FAIL|NOT TESTABLE)", " ".join(quiet.text.split()))
    assert states.group(1) == "PASS"


def test_a_log_that_cannot_be_reached_has_no_report(tmp_path, monkeypatch):
    monkeypatch.setattr("cmp.log.sqlite.BUSY_SECONDS", 0.1)
    memory = serve(tmp_path)
    memory.close()
    with closing(sqlite3.connect(memory.log.path, isolation_level=None)) as blocker:
        blocker.execute("PRAGMA journal_mode=DELETE")
        blocker.execute("BEGIN EXCLUSIVE")
        with pytest.raises(cmp.LogUnavailableError, match="cannot be used now"):
            write_report(memory.log, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_damaged_log_has_a_report_that_says_so(tmp_path):
    memory = serve(tmp_path)
    with sqlite3.connect(memory.log.path) as connection:
        connection.execute("DELETE FROM blocks")
    connection.close()
    page = read(memory, tmp_path)
    assert "A check failed" in page.text
    assert "does not allow an estimate" in page.text
    with sqlite3.connect(memory.log.path) as connection:
        connection.execute("DROP TABLE rounds")
    connection.close()
    assert "The log cannot be read" in read(memory, tmp_path).text


def test_options_that_are_wrong_are_refused(tmp_path):
    memory = serve(tmp_path)
    with pytest.raises(ValueError, match="no reference cards"):
        write_report(memory.log, tmp_path / "r.html", reference="card")
    with pytest.raises(ValueError, match="it has 'reward'"):
        write_report(memory.log, tmp_path / "r.html", metric="clicks")


def test_an_empty_log_has_a_report(tmp_path):
    path = write_report(cmp.open_log(tmp_path / "e.db", create=True), tmp_path / "r.html")
    assert "No memory has an estimate" in Reader(path.read_text("utf-8")).text


def test_many_memories_are_drawn_by_their_ends(tmp_path):
    ids = [f"m{i}" for i in range(60)]
    page = read(serve(tmp_path, ids, rounds=150), tmp_path)
    assert "the 20 highest and lowest of 60" in page.text
    assert sum(tag == "circle" for tag, _ in page.tags) == 40


@pytest.mark.parametrize("value", [0.0, 1e-9, -3.2, 1e6])
def test_a_drawing_holds_its_points_whatever_the_scale(value):
    drawing = draw_forest(
        [Estimate("a", value, value - 1e-9, value + 1e-9), Estimate("b", 0.0, None, None)], "u"
    )
    places = [float(x) for x in re.findall(r'cx="([^"]+)"', drawing)]
    assert all(270 <= x <= 860 for x in places)
    assert 2 <= len(re.findall('text-anchor="middle"', drawing)) <= 12
