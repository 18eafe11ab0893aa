"""The simulator: a step program on SimPy from a profile: streams, links, memory; see docs/architecture.md."""
