"""What a training step holds on each GPU, and when."""

from calculator.training.bill import bill, timeline
from calculator.training.check import check

__all__ = ["bill", "check", "timeline"]
