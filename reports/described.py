"""How pydantic reads the records that `--json` prints: attribute docstrings become the descriptions in a schema, and no
other key is allowed. (The records themselves never import pydantic.)"""

from typing import Any

DESCRIBED: dict[str, Any] = {"use_attribute_docstrings": True, "extra": "forbid"}
