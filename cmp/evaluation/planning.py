"""What a design can find out, before it runs: exposures, widths, detectable effects, rounds, and their price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any, Final, Literal

import polars as pl

from cmp.design.blocks import drawable_slots
from cmp.design.cards import n_reference_cards
from cmp.evaluation.detection import (
    Arms,
    binary_half_width,
    binary_power,
    mean_half_width,
    mean_power,
)

__all__ = ["Plan", "plan"]

#: Multiples of the rounds asked for that the curve shows.
CURVE: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

#: Beyond so many exposures a memory, no number of rounds is looked for.
MAX_EXPOSURES: Final = 100_000

#: Detectable effects are found to within this share of their range.
PRECISION: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _Study:
    """One study of a scope (or a query): everything but its rounds."""

    memories: int
    cards: int
    k: int
    rate: float
    sd: float | None
    level: float
    alpha: float

    @property
    def roster(self) -> int:
        """Memories and cards."""
        return self.memories + self.cards

    @property
    def scale(self) -> float:
        """What a difference of means is multiplied with to be a utility: against cards (N - 1) / N."""
        return (self.roster - 1) / self.roster if self.cards else 1.0

    def arms(self, rounds: int) -> Iterator[tuple[float, Arms]]:
        """Yield the shares of memories with each number of exposures, and their arms."""
        floor, odd = divmod(rounds * self.k, self.roster)
        for share, n1 in ((1 - odd / self.roster, floor), (odd / self.roster, floor + 1)):
            n0 = round(self.cards * rounds * self.k / self.roster) if self.cards else rounds - n1
            if share > 0:
                yield share, Arms(n1, n0)

    def df(self, arms: Arms) -> float:
        """Degrees of freedom of a moderated t where memories have one variance: theirs together, and the controls'."""
        of_exposed = max(self.memories * (arms.exposed - 1), 1)
        parts = (1 / arms.exposed, of_exposed), (1 / arms.control, max(arms.control - 1, 1))
        return float(sum(part for part, _ in parts) ** 2 / sum(part**2 / df for part, df in parts))

    def power(self, rounds: int, effect: float) -> float:
        """Mean over memories of the chance to find an effect; an arm below two rounds finds nothing."""
        gap = effect / self.scale
        return sum(share * self._power(arms, gap) for share, arms in self.arms(rounds) if min(arms) >= 2)

    def _power(self, arms: Arms, gap: float) -> float:
        if self.sd is not None:
            return mean_power(arms, gap, self.sd, self.df(arms), self.alpha)
        exposed = self.rate + gap
        return binary_power(arms, min(max(exposed, 0.0), 1.0), self.rate, self.alpha)

    def half_width(self, rounds: int) -> float | None:
        """Mean over memories of the expected half width where there is no effect; None where some have no interval."""
        total = 0.0
        for share, arms in self.arms(rounds):
            if min(arms) < 2:
                return None
            if self.sd is not None:
                total += share * mean_half_width(arms, self.sd, self.df(arms), self.level)
            else:
                total += share * binary_half_width(arms, self.rate, self.rate, self.level)
        return total * self.scale

    def detectable(self, rounds: int, power: float, sign: int) -> float | None:
        """Least effect of a sign found with this power; None where even the greatest possible is not."""
        greatest = self._greatest(rounds, sign)
        if greatest <= 0 or self.power(rounds, sign * greatest) < power:
            return None
        low, high = 0.0, greatest
        while high - low > PRECISION * greatest:
            middle = (low + high) / 2
            if self.power(rounds, sign * middle) >= power:
                high = middle
            else:
                low = middle
        return sign * high

    def _greatest(self, rounds: int, sign: int) -> float:
        if self.sd is None:
            return (1 - self.rate if sign > 0 else self.rate) * self.scale
        fewest = min(min(arms) for _, arms in self.arms(rounds))
        return 100.0 * self.sd * self.scale if fewest >= 2 else 0.0

    def needed(self, effect: float, power: float) -> int | None:
        """Rounds in whole exposures a memory with this power, one exposure fewer lacking it; None beyond reason."""
        failing, enough = 1, 2
        while self.power(self._rounds(enough), effect) < power:
            failing, enough = enough, 2 * enough
            if enough > MAX_EXPOSURES:
                return None
        while enough - failing > 1:
            middle = (failing + enough) // 2
            if self.power(self._rounds(middle), effect) >= power:
                enough = middle
            else:
                failing = middle
        return self._rounds(enough)

    def _rounds(self, exposures: int) -> int:
        return math.ceil(exposures * self.roster / self.k)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What a study of one scope, or one query, can find out.

    Attributes
    ----------
    frame : polars.DataFrame
        One row a number of ``rounds``, the asked one among them: ``exposures_least`` and ``exposures_most`` a memory;
        ``n_control``, rounds compared with; ``half_width``, expected, of the interval ``auto`` would use where there is
        no effect, outcome units; ``detectable_gain`` and ``detectable_loss``, least utilities found with the stated
        power; ``power`` for the stated effect; ``slots_spent``, ranked results that gave way, ``share_spent`` of all.
        What cannot be had is null.
    rounds : int
        Rounds asked for.
    rounds_needed : int or None
        Rounds for the stated effect, in whole exposures of every memory: one exposure fewer lacks the power. None
        without an effect, or where no number of rounds suffices.
    roster : int
        Memories and cards that share the random slots.
    reference : str
        ``"pool"`` or ``"card"``: what a utility is relative to.
    level, power, effect, alpha
        As asked; ``alpha``, the level of one memory's test, is (1 - level) / family.
    """

    frame: pl.DataFrame
    rounds: int
    rounds_needed: int | None
    roster: int
    reference: str
    level: float
    power: float
    effect: float | None
    alpha: float

    @property
    def row(self) -> dict[str, Any]:
        """The row of the rounds asked for."""
        return self.frame.row(by_predicate=pl.col("rounds") == self.rounds, named=True)

    def __repr__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the plan in a few lines."""
        row = self.row
        least, most = row["exposures_least"], row["exposures_most"]
        shown = f"{least}" if least == most else f"{least} or {most}"
        kinds = "memories and cards" if self.reference == "card" else "memories"
        width = row["half_width"]
        gain, loss = row["detectable_gain"], row["detectable_loss"]
        found = f"{self.power:.0%} power, p <= {self.alpha:.2g}"
        lines = [
            f"{self.rounds} rounds show each of {self.roster} {kinds} {shown} times, against "
            f"{row['n_control']} control rounds; utilities relative to the {self.reference}",
            f"{self.level:.0%} interval: "
            + (
                "none for some memories"
                if width is None
                else f"about +/- {width:.3g} where there is no effect"
            ),
            f"detectable ({found}): "
            + ("no gain however large" if gain is None else f"a gain of {gain:.3g} or more")
            + ", "
            + ("no loss however large" if loss is None else f"a loss of {-loss:.3g} or more"),
        ]
        if self.effect is not None:
            needed = "no number of rounds" if self.rounds_needed is None else f"{self.rounds_needed:,} rounds"
            lines.append(
                f"an effect of {self.effect:g}: power {row['power']:.0%} with {self.rounds} rounds; {needed} for "
                f"{self.power:.0%}"
            )
        lines.append(
            f"price: {row['slots_spent']:,} ranked results give way, {row['share_spent']:.0%} of all slots"
        )
        return "\n".join(lines)


def plan(
    n_memories: int = 32,
    slots: int = 6,
    random_slots: int = 2,
    rounds: int = 90,
    base_rate: float = 0.2,
    level: float = 0.95,
    power: float = 0.8,
    *,
    sd: float | None = None,
    effect: float | None = None,
    reference_cards: int | Literal["auto"] = 0,
    family: int = 1,
    curve: Sequence[int] | None = None,
) -> Plan:
    """Say what a balanced design can find out about each memory of one scope, or one query.

    For outcomes of 0 and 1 power is that of the exact test whose p-values the table shows, and widths are those of
    Newcombe's interval, both summed over the two binomials. With ``sd`` they are those of the moderated t where
    memories have one variance (noncentral t). They are of one block: in eight blocks of two exposures intervals were
    measured to be as wide for outcomes of 0 and 1, and 3 % wider for others. Rounds in which the ranker shows a memory
    anyway compare nothing, and are rounds on top of these.

    Parameters
    ----------
    n_memories
        Size of the roster.
    slots, random_slots
        ``B`` and ``k``.
    rounds
        Rounds of the scope, or of each query.
    base_rate
        Share of successes among control rounds; not used with ``sd``.
    level
        Confidence level.
    power
        Chance to find the detectable effect.
    sd
        Standard deviation of an outcome that is not of two values, within arms.
    effect
        A utility to be found: negative for harm. None looks for no number of rounds.
    reference_cards
        Blanks in the roster (``"auto"``: ``ceil(sqrt(N))``): utilities are then absolute, and compared with the rounds
        of the cards.
    family
        Hypotheses to be tested at once: one test's level is (1 - level) / family (Bonferroni; the q-values of the
        table find more).
    curve
        Rounds to show beside those asked for; by default a quarter to eight times as many.

    Returns
    -------
    Plan
        With ``frame``, ``row``, ``rounds_needed`` and ``summary()``.

    Raises
    ------
    ValueError
        For sizes, rates or levels out of range, or a roster too small to draw from.

    References
    ----------
    Fisher, R. A. (1935). The Design of Experiments, section 11. Newcombe, R. G. (1998). Statistics in Medicine 17,
    873-890. Smyth, G. K. (2004). Statistical Applications in Genetics and Molecular Biology 3, article 3. Dunnett,
    C. W. (1955). JASA 50, 1096-1121.

    Examples
    --------
    >>> print(plan(effect=0.3).summary())
    90 rounds show each of 32 memories 5 or 6 times, against 84 control rounds; utilities relative to the pool
    95% interval: about +/- 0.293 where there is no effect
    detectable (80% power, p <= 0.05): a gain of 0.57 or more, no loss however large
    an effect of 0.3: power 31% with 90 rounds; 320 rounds for 80%
    price: 180 ranked results give way, 33% of all slots
    """
    study, asked = _checked(
        n_memories, slots, random_slots, rounds, base_rate, level, power, sd, reference_cards, family
    )
    if effect is not None:
        _check_effect(effect, study)
    wanted = (
        [max(1, round(asked * factor)) for factor in CURVE] if curve is None else [index(n) for n in curve]
    )
    rows = [_row(study, number, slots, power, effect) for number in sorted({asked, *wanted}) if number >= 1]
    schema = {
        "half_width": pl.Float64,
        "detectable_gain": pl.Float64,
        "detectable_loss": pl.Float64,
        "power": pl.Float64,
    }
    return Plan(
        pl.DataFrame(rows, schema_overrides=schema),
        asked,
        None if effect is None else study.needed(effect, power),
        study.roster,
        "card" if study.cards else "pool",
        level,
        power,
        effect,
        study.alpha,
    )


def _row(study: _Study, rounds: int, slots: int, power: float, effect: float | None) -> dict[str, Any]:
    arms = [arms for _, arms in study.arms(rounds)]
    return {
        "rounds": rounds,
        "exposures_least": arms[0].exposed,
        "exposures_most": arms[-1].exposed,
        "n_control": min(arm.control for arm in arms),
        "half_width": study.half_width(rounds),
        "detectable_gain": study.detectable(rounds, power, 1),
        "detectable_loss": study.detectable(rounds, power, -1),
        "power": None if effect is None else study.power(rounds, effect),
        "slots_spent": rounds * study.k,
        "share_spent": study.k / slots,
    }


def _checked(
    n_memories: int,
    slots: int,
    random_slots: int,
    rounds: int,
    base_rate: float,
    level: float,
    power: float,
    sd: float | None,
    reference_cards: int | Literal["auto"],
    family: int,
) -> tuple[_Study, int]:
    sizes = {
        "n_memories": n_memories,
        "slots": slots,
        "random_slots": random_slots,
        "rounds": rounds,
        "family": family,
    }
    for name, value in sizes.items():
        if not _is_whole(value) or value < 1:
            raise ValueError(f"{name} is {value!r}; give a whole number, 1 or more")
    if random_slots > slots:
        raise ValueError(
            f"random_slots is {random_slots} and slots is {slots}: give no more random slots than slots"
        )
    for name, share in {"level": level, "power": power, "base_rate": base_rate}.items():
        if not 0.0 < share < 1.0:
            raise ValueError(f"{name} is {share!r}; give a share between 0 and 1, both excluded")
    if sd is not None and not (0.0 < sd < math.inf):
        raise ValueError(f"sd is {sd!r}; give the positive standard deviation of the outcome")
    if reference_cards != "auto" and (not _is_whole(reference_cards) or reference_cards < 0):
        raise ValueError(f"reference_cards is {reference_cards!r}; give a whole number, 0 or more, or 'auto'")
    cards = n_reference_cards(n_memories, reference_cards)
    k = drawable_slots(n_memories + cards, random_slots)
    if k == 0:
        raise ValueError("a roster of one memory randomizes nothing: give two memories, or reference_cards")
    return _Study(n_memories, cards, k, base_rate, sd, level, (1 - level) / family), rounds


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_effect(effect: float, study: _Study) -> None:
    if not math.isfinite(effect) or effect == 0.0:
        raise ValueError(f"effect is {effect!r}; give a difference to be found, other than 0")
    if study.sd is None and not 0.0 <= study.rate + effect / study.scale <= 1.0:
        raise ValueError(
            f"effect is {effect} and base_rate {study.rate}: no rate of successes is their sum; give an effect "
            f"between {-study.rate * study.scale:.3g} and {(1 - study.rate) * study.scale:.3g}, or sd"
        )
