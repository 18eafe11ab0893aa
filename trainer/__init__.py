"""Trainer: executes a step program on torch.distributed, instruction by instruction, and trains a model with it."""
