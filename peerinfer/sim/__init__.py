"""Simulated adapters: the same node code in virtual time."""
