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

ALIKE = 0.01

if TYPE_CHECKING:
    from calibration.profile import Profile


def warnings(run: Run, profile: Profile) -> tuple[str, ...]:
    """One sentence when the profile is known to be of another card than the cluster's; none on a CPU."""
    own, priced = run.cluster.gpu, card_of(profile.name)
    if run.cluster.device == "cpu" or priced is None or own == priced:
        return ()
    told = f"the cluster's cards are {own}, but profile {profile.name} was made for {priced}"
    differences = "; ".join(_differences(run, _sheet(own), _sheet(priced)))
    return (f"{told}, at whose rates kernels are priced{': ' if differences else ''}{differences}",)


def card_of(profile: str) -> str | None:
    """The card that a profile is of by its name; None when the name says nothing."""
    known = [name for name in presets.names("gpus") if profile == name or profile.startswith(f"{name}-")]
    return max(known, key=len, default=None)


def memory_gb_s(run: Run, profile: Profile) -> float | None:
    """GB/s of the memory of the cluster's card, or of the profile's where that is more; None where nobody says."""
    sheets = [_sheet(run.cluster.gpu), _sheet(card_of(profile.name) or "")]
    return max((sheet["memory_gb_s"] for sheet in sheets if "memory_gb_s" in sheet), default=None)


def _sheet(card: str) -> dict[str, Any]:
    return presets.preset("gpus", card) if card in presets.names("gpus") else {}


def _differences(run: Run, own: dict[str, Any], priced: dict[str, Any]) -> Iterator[str]:
    """What the data sheets, and the cluster, say of both cards that a forecast depends on, as ratios here : there."""
    precision = run.plan.precision
    here, there = own.get("memory_gb_s"), priced.get("memory_gb_s")
    if here and there and here != there:
        ratio, way = max(here, there) / min(here, there), "fast" if here < there else "slow"
        yield (
            f"memory moves {here:g} GB/s here and {there:g} GB/s there (data sheets; {here / there:.2f}), so operators"
            f" bound by memory are forecast too {way}, by up to {ratio - 1:.0%}"
        )
    here, there = run.cluster.peak_tflops.get(precision), priced.get("peak_tflops", {}).get(precision)
    if here and there and here != there:
        yield f"the {precision} peak is {here:g} TFLOP/s here and {there:g} there ({here / there:.2f})"
    here, there = run.cluster.gpu_memory_gib, priced.get("memory_gib")
    if there and abs(here / there - 1) > ALIKE:
        yield f"a card holds {here:g} GiB here and {there:g} there ({here / there:.2f})"
