"""What a pooling layer costs on this machine, at the shape it will have: `gspool bench`, and `measure` for programs.

Layers take turns on the same feature maps, and with a backbone in front of them on the same images; medians count.
It needs torch alone; a backbone needs what `gspool[train]` brings.
"""

from gspool.bench.measure import Cost, Measured, Row, measure
from gspool.bench.settings import Settings
from gspool.bench.timing import Spread

__all__ = ["Cost", "Measured", "Row", "Settings", "Spread", "measure"]
