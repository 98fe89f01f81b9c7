"""The table of all ablations: importing the modules of the safeguards fills it."""

from tests.simulation.ablations import of_servers, of_trainers
from tests.simulation.ablations.ablation import TABLE

__all__ = ["TABLE", "of_servers", "of_trainers"]
