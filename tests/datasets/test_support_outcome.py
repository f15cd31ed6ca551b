"""Answer support is the share of an answer's content words that were served."""

from __future__ import annotations

import pytest

from cmp.datasets import answer_support


@pytest.mark.parametrize(
    ("answer", "texts", "support"),
    [
        ("7 May 2023", ["On 7 May."], 2 / 3),
        ("Oslo, Oslo, Bergen", ["OSLO!"], 1 / 2),
        ("The cat", ["a dog", "the dog"], 0.0),
        ("the", ["The end."], 1.0),
        ("not now", ["now"], 1 / 2),
        ("Zoë", ["zoë"], 1.0),
        ("skis", [], 0.0),
        ("ski", ["skis"], 0.0),
    ],
)
def test_support_counts_distinct_content_words(answer: str, texts: list[str], support: float) -> None:
    assert answer_support(answer, texts) == support


def test_support_never_falls_with_more_texts_nor_depends_on_their_order() -> None:
    texts = ["red wine", "aged cheese", "green tea"]
    values = [answer_support("red wine and cheese", texts[:n]) for n in range(4)]
    assert values == sorted(values)
    assert answer_support("red wine and cheese", texts[::-1]) == values[-1]


@pytest.mark.parametrize("answer", ["", " ", "?!"])
def test_an_answer_without_words_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="no word to look for"):
        answer_support(answer, ["x"])
