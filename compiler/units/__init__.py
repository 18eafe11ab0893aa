"""What the units of a model compute, as lines of operators over named tensors: declared once, priced and executed.

`embedding`, `layer` and `head` are the units a pipeline distributes; `step` holds what stands around them, once a step
or once a micro-batch.
"""

from compiler.units.builder import saved_names
from compiler.units.embedding import TABLE, embedding
from compiler.units.head import HEAD, head
from compiler.units.layer import layer
from compiler.units.shape import UnitShape, unit_shape
from compiler.units.step import AdamNumbers

__all__ = ["HEAD", "TABLE", "AdamNumbers", "UnitShape", "embedding", "head", "layer", "saved_names", "unit_shape"]
