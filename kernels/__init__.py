"""Kernels: Triton kernels and their torch references, bound to the operators of plan/ops.py by kernels/registry.py."""
