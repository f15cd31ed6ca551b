"""Reference cards: how many there are, what they are called, and that no memory may be called so."""

from __future__ import annotations

import pytest

import cmp
from cmp.design.cards import CARD_PREFIX, card_ids, is_card, n_reference_cards, refuse_cards


def test_dunnetts_allocation_is_the_next_whole_root():
    """ceil(sqrt(N)), checked by squares: the least number whose square is N or more."""
    for n in range(0, 200):
        cards = n_reference_cards(n, "auto")
        assert cards**2 >= n > (cards - 1) ** 2 or n == cards == 0


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_number_of_cards_is_taken_as_given(number):
    assert n_reference_cards(32, number) == number


@pytest.mark.parametrize("number", range(6))
def test_there_are_as_many_distinct_cards_as_asked_for(number):
    ids = card_ids(number)
    assert ids == [f"__card__/{n + 1}" for n in range(number)]
    assert all(is_card(card) for card in ids)


def test_only_ids_that_begin_as_a_cards_do_are_cards():
    assert is_card(CARD_PREFIX)
    assert not any(is_card(memory) for memory in ("", "card", "m__card__/1", "__card__", "__CARD__/1"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_memory_with_a_cards_id_is_refused_wherever_it_stands(place):
    ids = ["a", "b"]
    ids.insert(place, "__card__/9")
    with pytest.raises(
        cmp.InvalidIdError, match="'__card__/9' is reserved for reference cards; rename the memory"
    ):
        refuse_cards(ids)


def test_other_memories_are_not_refused():
    refuse_cards(["a", "card", "__card__"])
