"""A swarm of real nodes in virtual time: the production node on simulated engines and the in-memory overlay."""
