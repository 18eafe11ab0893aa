"""Single values of a torchtitan configuration, by their dotted keys."""

from collections.abc import Mapping
from typing import Any

from plan.ledger import Ledger


def on(keys: Mapping[str, Any], key: str, ledger: Ledger) -> bool:
    """Whether a key is given and true."""
    return keys.get(key, "") != "" and bool(ledger.boolean(keys[key], key))


def whole(keys: Mapping[str, Any], key: str, ledger: Ledger) -> int | None:
    """A whole number; None where it is not given or wrong."""
    return ledger.integer(keys[key], key) if key in keys else None
