"""The language: model, cluster, plan, the rules between them; the step program compiled from them; the timeline.

Start at `plan.run.load`, which turns a run file into a `Run`. Nothing in this package imports torch.
"""
