"""Sweeps: many runs from recipes and overrides, stage 1 shared, one table at the end."""

from fcam.sweep.collect import collect
from fcam.sweep.execute import execute
from fcam.sweep.plan import Plan, SweepConfig, make_plan
from fcam.sweep.presets import PRESETS

__all__ = ["PRESETS", "Plan", "SweepConfig", "collect", "execute", "make_plan"]
