"""What the resolution of a map costs at best (paper, sec. sim-impact-factor)."""

from fcam.simulate.simulation import low_resolution, simulate

__all__ = ["low_resolution", "simulate"]
