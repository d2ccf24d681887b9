"""Fuzzing of every parser that reads a stranger's bytes: `make fuzz CASES=…`, and a bounded part in tests."""
