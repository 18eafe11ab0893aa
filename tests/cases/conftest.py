"""The command line in this process, for the cases that are about what a user sees."""

from tests.windtunnel.conftest import wt

__all__ = ["wt"]
