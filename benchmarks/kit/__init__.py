"""What the benchmarks share: engines without a model, a client, processes, workloads, tables."""
