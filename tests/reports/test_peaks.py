"""No forecast is faster than the card it is of: the step as a whole, and each kind of call in it."""

from typing import Any

import pytest
import yaml

from calibration.profile import load_profile
from calibration.profile_paths import profile_path
from compiler import compile_plan
from plan import presets
from plan.presets import merge
from plan.run import load
from program.errors import InputError
from reports.peaks import refuse_impossible
from windtunnel import api

SMALL = {
    "model": {"preset": "gpt3-6.7b", "layers": 2},
    "cluster": {"preset": "dgx-a100-80gb"},
    "plan": {"zero_stage": 3, "micro_batch_size": 4},
}


def refused(profile: Any = None, **sections: Any) -> str:
    with pytest.raises(InputError) as found:
        api.forecast(load(merge(SMALL, sections)), profile=profile)
    return str(found.value)


@pytest.mark.parametrize("flops", ["exact", "megatron", "palm"])
def test_a_step_above_the_stated_peak_is_refused_whatever_convention_is_printed(flops: str) -> None:
    run = load(merge(SMALL, {"cluster": {"peak_tflops": {"bf16": 120}}}))
    with pytest.raises(InputError, match=r"would use 1\d\d% of the card: .* against a peak of 120 at bf16"):
        api.forecast(run, flops=flops)


def test_one_kind_of_call_above_the_peak_is_refused_in_a_step_that_is_below(tmp_path: Any) -> None:
    """Forward products ten times too fast: the step is below 100 %."""
    raw = yaml.safe_load(profile_path("a100-80gb").read_text(encoding="utf-8"))
    own = next(entry for entry in raw["gemm"] if entry["dtype"] == "bf16")
    own = {**own, "points": [], "layout": "nt", "form": {**own["form"], "flops_per_s": 3e15}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(raw | {"gemm": [*raw["gemm"], own]}))
    said = refused(str(tmp_path / "p.yaml"), cluster={"peak_tflops": {"bf16": 500}})
    assert "prices gemm bf16 nt" in said
    assert "beyond the card's peak of 500" in said
    assert "of the card" not in said


def test_operators_faster_than_the_memory_are_refused(tmp_path: Any) -> None:
    raw = yaml.safe_load(profile_path("a100-80gb").read_text(encoding="utf-8"))
    for entry in raw["memory"]:
        entry.update(points=[], bytes_per_s=3e12)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(raw))
    assert "GB/s, beyond the card's 2039" in refused(str(tmp_path / "p.yaml"))


def test_a_stand_in_is_named_where_its_price_is_impossible() -> None:
    """fp64 attention at four times the time of 16 bits is beyond an A100's 19.5 TFLOP/s."""
    assert "attention_forward in bf16 stands in" in refused(plan={"precision": "fp64"})


@pytest.mark.parametrize("cluster", [name for name in presets.names("clusters") if name != "cpu"])
@pytest.mark.parametrize("model", ["gpt2-355m", "llama-3-8b", "gpt3-175b"])
@pytest.mark.parametrize(
    "plan", [{"zero_stage": 3, "micro_batch_size": 4}, {"tensor_parallel": 8, "kernels": "triton"}]
)
def test_every_preset_is_possible(cluster: str, model: str, plan: dict[str, Any]) -> None:
    """Priced, not simulated: a step cannot be faster than its kernels."""
    run = load({"model": {"preset": model, "layers": 2}, "cluster": cluster, "plan": plan})
    profile = load_profile(run.cluster.profile).for_kernels(run.plan.kernels)
    refuse_impossible(run, compile_plan(run.model, run.plan), profile, float("inf"), None)


def test_the_profile_that_a_preset_names_goes_with_its_own_card() -> None:
    named, other = ({"preset": "dgx-a100-40gb", **more} for more in ({}, {"gpu": "h100"}))
    assert load({**SMALL, "cluster": named}).cluster.profile == "a100-80gb"
    assert load({**SMALL, "cluster": other}).cluster.profile == "h100"
    assert load({**SMALL, "cluster": {**other, "profile": "a100-80gb"}}).cluster.profile == "a100-80gb"


def test_a_card_without_a_profile_is_refused_until_somebody_names_one() -> None:
    mine = {"preset": "dgx-a100-40gb", "gpu": "mine", "gpu_memory_gib": 40, "peak_tflops": {"bf16": 312}}
    assert "no profile of the cluster's card mine ships, and nobody named another" in refused(cluster=mine)
    found = api.forecast(load(merge(SMALL, {"cluster": {**mine, "profile": "a100-80gb"}})))
    assert any("cards are mine, but profile a100-80gb was made for a100-80gb" in text for text in found.warnings)


def test_an_endless_cost_is_refused() -> None:
    with pytest.raises(InputError, match=r"price_per_gpu_hour.*10\^18"):
        load(merge(SMALL, {"budget": {"price_per_gpu_hour": 1e300}}))
