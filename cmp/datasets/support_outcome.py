"""Answer support: an outcome that reads the gold answer and needs no model."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["answer_support"]

_WORD = re.compile(r"\w+")

_FUNCTION_WORDS = """
a an and are as at be been but by did do does for from had has have he her hers him his how i if in
into is it its me my of on or our ours she so some than that the their theirs them then there these
they this those to too was we were what when where which while who whom whose why will with would
you your yours
"""

#: Nothing that could be the whole of an answer, such as a number, a negation or a place.
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


def answer_support(answer: str, texts: Sequence[str]) -> float:
    r"""Return the share of the gold answer's words that the served texts hold.

    It says whether the context could support the answer, not whether a reader would find it there: it reads
    the gold answer and no model. Words are the distinct lower-cased ``\w+`` tokens of the answer; English
    function words are left out unless the answer has no others.

    Parameters
    ----------
    answer
        The gold answer, not empty of words.
    texts
        The texts served, in any order; none supports nothing.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        Where the answer has no word.

    Examples
    --------
    >>> answer_support("Red wine and aged cheese", ["Aged cheese gives me migraines."])
    0.5
    >>> answer_support("He did", ["She did."])
    0.5
    """
    words = set(_WORD.findall(answer.lower()))
    if not words:
        raise ValueError(f"the gold answer {answer!r} has no word to look for; leave the question out")
    sought = words - _STOP_WORDS or words
    served = {word for text in texts for word in _WORD.findall(text.lower())}
    return len(sought & served) / len(sought)
