"""What the units of a model compute, as lines of operators over named tensors: declared once, priced and executed.

`embedding`, `layer` and `head` are the units a pipeline distributes; `step` holds what stands around them, once a step
or once a micro-batch.
"""

from plan.units.builder import saved_names
from plan.units.embedding import TABLE, embedding
from plan.units.head import HEAD, head
from plan.units.layer import layer
from plan.units.shape import UnitShape, unit_shape
from plan.units.step import AdamNumbers

__all__ = ["HEAD", "TABLE", "AdamNumbers", "UnitShape", "embedding", "head", "layer", "saved_names", "unit_shape"]
