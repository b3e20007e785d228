"""What serving engines hold on a GPU, and how many requests that leaves room for."""

from calculator.serving.bill import bill, geometry, start

__all__ = ["bill", "geometry", "start"]
