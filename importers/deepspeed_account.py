"""What every key of a DeepSpeed configuration owes: a value in range, and to be spoken of once, also when it is not
translated.

A key ends here as without effect, as known but left out of the forecast, or as not yet forecast.
"""

from collections.abc import Mapping
from typing import Any

from importers import deepspeed_keys as keys
from plan.ledger import Ledger


def in_range(config: Mapping[str, Any], ledger: Ledger, inside: str = "") -> dict[str, Any]:
    """The configuration without the numbers below their least value, each of them a problem under its own key."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{inside}{key}"
        least = keys.LEAST.get(path)
        if isinstance(value, Mapping):
            kept[key] = in_range(value, ledger, f"{path}.")
        elif least is None or value is None or ledger.number(value, path, least=least) is not None:
            kept[key] = value
    return kept


def account(config: Mapping[str, Any], ledger: Ledger) -> None:
    """Speak of every known key that `importers.deepspeed` does not read."""
    paths = _paths(config)
    left_out = [path for path in paths if path in keys.UNMODELLED]
    if left_out:
        ledger.warn(f"DeepSpeed keys whose effect on the step is not forecast: {', '.join(left_out)}")
    ledger.no_effect(
        [
            path
            for path in paths
            if path not in keys.UNMODELLED and path not in keys.READ and path not in keys.NOT_FORECAST
        ],
        "DeepSpeed keys",
    )
    for key, nearest in keys.NOT_FORECAST.items():
        if key in config and _switched_on(config[key]):
            ledger.not_yet(f"DeepSpeed's {key}", nearest)
        elif key in config:
            ledger.note(f"DeepSpeed's {key} is switched off")


def _paths(config: Mapping[str, Any]) -> list[str]:
    """Dotted names of top-level keys and of the keys of checked sections."""
    found: list[str] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and key in keys.OPENED:
            for inner, part in value.items():
                path = f"{key}.{inner}"
                opened = isinstance(part, Mapping) and path in keys.OPENED
                found += [f"{path}.{leaf}" for leaf in part] if opened else [path]
        else:
            found.append(key)
    return found


def _switched_on(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value.get("enabled", True))
    return (bool(value) and value != 1) or value is True
