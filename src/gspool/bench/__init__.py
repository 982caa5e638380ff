"""Measure what a pooling layer costs on this machine: `gspool bench`, and `measure` for programs.

Layers take turns on the same feature maps, and with a backbone on the same images; medians are compared. It needs torch
alone; a backbone needs `gspool[train]`.
"""

from gspool.bench.measure import Cost, Measured, Row, measure
from gspool.bench.settings import Settings
from gspool.bench.timing import Spread

__all__ = ["Cost", "Measured", "Row", "Settings", "Spread", "measure"]
