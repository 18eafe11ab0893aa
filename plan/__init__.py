"""The language: model, cluster, plan and the rules between them; the step program compiled from them; the timeline format.

Start at `plan.run.load`, which turns a run file into a `Run`. Nothing in this package imports torch.
"""
