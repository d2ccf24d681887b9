"""What a decision turned out to be worth: the first token's time against what was predicted, and the sums."""

from __future__ import annotations

import trio

from peerinfer.core.router import Candidate
from peerinfer.core.types import Chunk, End
from peerinfer.node.context import Context
from peerinfer.node.decisions import Decision


def note_first(
    node: Context, k: Candidate, decision: Decision, first: Chunk | End, *, begun_at: float
) -> None:
    """Target k, tried since `begun_at`, has answered: compare, learn and add up.

    Nothing is to be learnt where tokens are unknown, from the rest of an answer that had begun elsewhere, and
    from an answer that comes as a whole, whose first piece is late by all that was decoded.
    """
    begun_before = decision.first_chunk_at is not None
    if begun_before or not decision.prompt_tokens or (isinstance(first, Chunk) and first.whole):
        return
    now = trio.current_time()
    actual_s = now - begun_at
    decision.predicted_s, decision.actual_s = k.first_token_s, actual_s
    if k.wait_s == 0.0:  # else the error is that of the wait, which comes and goes, and not the link's
        node.view.observe_error(k.peer, actual_s - (k.first_token_s - k.bias_s), now=now)
    ranking = decision.ranking
    mine = next((each for each in ranking.targets if each.is_me), None) if ranking else None
    if k.is_me or mine is None or not node.engine_ready:
        return
    decision.alone_s = mine.first_token_s + (node.view.own_error.at(now) or 0.0)
    node.totals.forwarding_saved(decision.alone_s - actual_s)
