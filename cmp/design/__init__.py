"""Chance: the only source of propensities."""

from cmp.design.blocks import (
    GENERATOR,
    Block,
    block_generator,
    block_length,
    drawable_slots,
    joint_propensity,
    plan_block,
    uniform_block,
)
from cmp.design.keyed import key_of, keyed_fraction, keyed_permutation, keyed_sample
from cmp.design.tables import balanced_table

__all__ = [
    "GENERATOR",
    "Block",
    "balanced_table",
    "block_generator",
    "block_length",
    "drawable_slots",
    "joint_propensity",
    "key_of",
    "keyed_fraction",
    "keyed_permutation",
    "keyed_sample",
    "plan_block",
    "uniform_block",
]
