"""Slurm clusters that heal themselves."""

__version__ = "0.1.0"
