"""Importers: Megatron launch scripts, DeepSpeed JSON and Hugging Face config.json, each read into the keys of a run file."""
