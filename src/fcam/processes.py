"""The processes of a run: one, or those that `accelerate launch` or `torchrun` started."""

from __future__ import annotations

import os

import torch
from accelerate import PartialState


def process_state() -> PartialState:
    """This process's place among those of the run; several work together on a machine without accelerator too.

    Accelerate takes processes on CPUs for separate runs unless it is told, and the first call in a process decides.
    """
    launched = "LOCAL_RANK" in os.environ
    return PartialState(cpu=True) if launched and not torch.accelerator.is_available() else PartialState()
