"""Benchmarks: each one is a module with a command line of its own (docs/performance.md)."""
