"""Worlds whose utilities are known, served through the real wrapper: what an analysis should find is on record."""

from cmp.simulation.served import Simulation, SimulationScore
from cmp.simulation.serving_worlds import simulate

__all__ = ["Simulation", "SimulationScore", "simulate"]
