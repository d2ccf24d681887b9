"""What is asked of a swarm: the paper's workload, public traces, and generators."""
