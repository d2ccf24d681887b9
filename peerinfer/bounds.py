"""Everything that clients or peers could make grow without end, by the setting that bounds it, and why.

What is no setting is a limit of the protocol (docs/protocol.md): ids and names, addresses, frames, streams.
docs/operations.md has this as a table, with the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

BOUNDS: Mapping[str, str] = {
    "http.body_bytes_max": "a body is in memory as long as its request lives, and travels in one frame",
    "http.connections_max": "a client's request has a connection of its own: so many requests at once",
    "request.queued_per_slot_max": "who waits longer than a client does occupies memory for nobody",
    "request.attempts_max": "each target tried is work for the swarm",
    "request.continuations_max": "an answer that kills engines must end",
    "request.deadline_s": "a request that nobody ends",
    "request.decisions_kept": "the ring behind `peerinfer why`",
    "engine.context_tokens": "prompt and answer: longer prompts are refused where they come in",
    "engine.cache_tokens": "the KV cache, and the own tree with it",
    "overlay.streams_per_peer_max": "the 257th stream of a connection blocks silently",
    "overlay.idle_streams_per_peer_max": "kept-open streams cost memory on both sides",
    "overlay.gossip_per_peer_per_s_max": "5 ms of CPU per message",
    "overlay.gossip_passed_on_per_peer_per_s_max": "decoded before its author is known",
    "overlay.streams_opened_per_peer_per_s_max": "negotiating a stream costs milliseconds",
    "overlay.frames_without_data_per_connection_per_s_max": "5,000 fit into one encrypted message",
    "overlay.lookups_per_peer_per_s_max": "10 ms of CPU per question for peers",
    "overlay.requests_per_peer_per_s_max": "each is parsed before it can be refused",
    "overlay.relay_circuits_max": "others' traffic, and buffers for it",
    "overlay.unfinished_bytes_per_peer_max": "a frame is kept until its end comes, which it need not",
    "overlay.unfinished_bytes_max": "the same of all peers: none of them need be over its own bound",
    "overlay.dials_per_s_max": "addresses come from strangers",
    "anti_entropy.snapshot_bytes_max": "the topic loses longer messages silently: so many pages per estimate",
    "anti_entropy.estimates_bytes_max": "all estimates together",
    "anti_entropy.peers_max": "peers, and marks of forgotten ones",
    "anti_entropy.messages_per_s_max": "gossip saturates a core at 80 messages a second",
}
