"""Attributes on the active span: of the round, never of who stands in which slot."""

from __future__ import annotations

import asyncio
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cmp
from cmp.serving.telemetry import ATTRIBUTES
from tests.serving.stores import store, wrapped


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def test_a_round_is_written_to_the_active_span(tmp_path, spans):
    tracer, exporter = spans
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3"]), telemetry=True)
    with tracer.start_as_current_span("answer"):
        context = memory.retrieve("a private question", scope="s")
    with tracer.start_as_current_span("answer"):
        again = asyncio.run(memory.aretrieve("q", scope="s"))
    first, second = (dict(span.attributes) for span in exporter.get_finished_spans())
    assert first["cmp.round_id"] == context.round_id
    assert (first["cmp.randomized"], first["cmp.slots.total"], first["cmp.slots.random"]) == (True, 4, 1)
    assert first["gen_ai.memory.record.count"] == len(context)
    assert second["cmp.round_id"] == again.round_id
    assert set(first) <= set(ATTRIBUTES.values())
    written = " ".join(map(str, first.values()))
    assert "private" not in written
    assert not any(item.id in written.split() for item in context.items)


def test_nothing_is_written_unless_asked_for_or_without_a_span(tmp_path, spans):
    tracer, exporter = spans
    with tracer.start_as_current_span("answer"):
        wrapped(tmp_path, store(9)).retrieve("q", scope="s")
    assert not exporter.get_finished_spans()[0].attributes
    assert wrapped(tmp_path, store(9), telemetry=True).retrieve("q", scope="s").randomized


def test_a_missing_api_is_named_when_wrapping(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(cmp.MissingExtraError, match=r"\[otel\]"):
        wrapped(tmp_path, store(9), telemetry=True)


def test_a_trace_that_fails_fails_no_request(tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no exporter")

    monkeypatch.setattr("cmp.serving.wrapper.annotate_span", broken)
    memory = wrapped(tmp_path, store(9), telemetry=True)
    assert memory.retrieve("q", scope="s").randomized
    assert memory.stats()["telemetry_failed"] == 1
