"""Presets against what was published."""

import pytest

from plan import presets
from plan.run import Run, load

# Integers: released checkpoints (config.json and safetensors index on the Hugging Face hub).
EXACT = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "bloom-176b": 176_247_271_424,
    # Of transformers' classes on the released config.json: `AutoModelForCausalLM.from_config(...).num_parameters()`.
    "gpt3-6.7b": 6_658_404_352,
    "gpt3-13b": 12_853_386_240,
    "gpt3-175b": 174_615_846_912,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "pythia-6.9b": 6_857_302_016,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "falcon-180b": 179_522_565_120,
    "opt-6.7b": 6_658_473_984,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "starcoder": 15_517_456_384,
    "phi-2": 2_779_683_840,
    "gpt-j-6b": 6_050_882_784,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-15b": 15_957_889_024,
}
# Digits: arXiv 2005.14165 Table 2.1 (GPT-3) and arXiv 2104.04473 Table 1 (Megatron), in billions.
DIGITS = {
    "gpt3-6.7b": "6.7",
    "gpt3-13b": "12.9",
    "megatron-1.7b": "1.7",
    "megatron-3.6b": "3.6",
    "megatron-7.5b": "7.5",
    "megatron-18.4b": "18.4",
    "megatron-39.1b": "39.1",
    "megatron-76.1b": "76.1",
    "megatron-145.6b": "145.6",
    "megatron-310.1b": "310.1",
    "megatron-529.6b": "529.6",
    "megatron-1t": "1008.0",
    "gpt3-175b": "174.6",
}


def forecastable(model: str, cluster: object = "dgx-a100-80gb") -> Run:
    return load({"model": model, "cluster": cluster, "plan": {}})


def test_every_model_preset_is_held_to_a_published_count() -> None:
    assert set(presets.names("models")) == set(EXACT) | set(DIGITS)


@pytest.mark.parametrize("name", EXACT)
def test_the_count_equals_the_published_integer(name: str) -> None:
    assert forecastable(name).model.parameters() == EXACT[name]


@pytest.mark.parametrize("name", DIGITS)
def test_the_count_rounds_to_the_published_digits(name: str) -> None:
    """Megatron's 76.1B is 76.05 by its own formula; GPT-3's 13B has 12.9 billion."""
    assert forecastable(name).model.parameters() / 1e9 == pytest.approx(float(DIGITS[name]), abs=0.0501)


@pytest.mark.parametrize("name", [name for name in DIGITS if name.startswith("megatron") or name == "gpt3-175b"])
def test_megatron_counts_follow_the_papers_formula(name: str) -> None:
    """P = 12·l·h²(1 + 13/12h + (V+s)/12lh), arXiv 2104.04473 eq. 2; the paper leaves out the final norm's 2h."""
    m = forecastable(name).model
    paper = 12 * m.layers * m.hidden**2 + 13 * m.layers * m.hidden + (m.vocab + m.seq_length) * m.hidden
    assert m.parameters() == paper + 2 * m.hidden


@pytest.mark.parametrize(
    ("name", "memory", "bf16", "nic"),
    [
        ("dgx-a100-40gb", 40, 312, 25),
        ("dgx-a100-80gb", 80, 312, 25),
        ("dgx-h100", 80, 989.4, 50),
        ("dgx-h200", 141, 989.4, 50),
    ],
)
def test_node_types_have_their_data_sheet_numbers(name: str, memory: float, bf16: float, nic: float) -> None:
    cluster = forecastable("gpt2-124m", {"preset": name, "nodes": 2}).cluster
    assert (cluster.gpus, cluster.gpus_per_node, cluster.nics.count) == (16, 8, 8)
    assert cluster.peak_tflops["bf16"] == bf16
    assert cluster.nics.bandwidth_gb_s == nic
    assert 0.97 < cluster.gpu_memory_gib / memory < 1.0


def test_the_dense_peak_is_used_and_not_the_sparse_one() -> None:
    """Case: MFU halved by dividing by 1979 (fms-fsdp issue 89)."""
    assert forecastable("gpt2-124m", "dgx-h100").cluster.peak_flops("bf16") == 989.4e12


def test_a_preset_is_overridden_key_by_key_and_nested_keys_are_merged() -> None:
    cluster = forecastable("gpt2-124m", {"preset": "dgx-a100-80gb", "nodes": 8, "nics": {"count": 4}}).cluster
    assert (cluster.nodes, cluster.nics.count, cluster.nics.bandwidth_gb_s) == (8, 4, 25)


def test_every_cluster_preset_loads_alone() -> None:
    for name in presets.names("clusters"):
        assert forecastable("gpt2-124m", name).cluster.name == name
