"""Whether the prices are of the cluster's card: a profile serves a sister card too, whose memory or compute differs,
and a forecast then says what was not priced.

A profile is of the card whose name it bears, alone or before a dash: `a100-80gb`, `h200-published`. A profile named
otherwise says nothing about cards. Memory bandwidths and peaks are those of the data sheets
(`plan/presets/gpus.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plan import presets
from plan.run import Run

if TYPE_CHECKING:
    from calibration.profile import Profile


def warnings(run: Run, profile: Profile) -> tuple[str, ...]:
    """One sentence when the profile is known to be of another card than the cluster's; none on a CPU."""
    own, priced = run.cluster.gpu, card_of(profile.name)
    if run.cluster.device == "cpu" or priced is None or own == priced:
        return ()
    told = f"the cluster's cards are {own}, but profile {profile.name} was made for {priced}"
    differences = "; ".join(_differences(_sheet(own), _sheet(priced), run.plan.precision))
    return (f"{told}, at whose rates kernels are priced{': ' if differences else ''}{differences}",)


def card_of(profile: str) -> str | None:
    """The card that a profile is of by its name; None when the name says nothing."""
    known = [name for name in presets.names("gpus") if profile == name or profile.startswith(f"{name}-")]
    return max(known, key=len, default=None)


def _sheet(card: str) -> dict[str, Any]:
    return presets.preset("gpus", card) if card in presets.names("gpus") else {}


def _differences(own: dict[str, Any], priced: dict[str, Any], precision: str) -> Iterator[str]:
    """What the data sheets say of both cards that a price depends on."""
    here, there = own.get("memory_gb_s"), priced.get("memory_gb_s")
    if here and there and here != there:
        ratio, way = max(here, there) / min(here, there), "fast" if here < there else "slow"
        yield (
            f"memory moves {here:g} GB/s here and {there:g} GB/s there (data sheets), so operators bound by memory are"
            f" forecast too {way}, by up to {ratio - 1:.0%}"
        )
    here, there = (sheet.get("peak_tflops", {}).get(precision) for sheet in (own, priced))
    if here and there and here != there:
        yield f"the {precision} peak is {here:g} TFLOP/s here and {there:g} there (data sheets)"
