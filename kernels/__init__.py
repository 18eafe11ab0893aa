"""Kernels: Triton kernels and their torch references, bound to the operators of program/ops.py by
kernels/registry.py."""
