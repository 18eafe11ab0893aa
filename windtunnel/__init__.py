"""Windtunnel: the front door: the command line, and what composes the simulator with the trainer."""
