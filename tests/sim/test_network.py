"""What the simulated network does to a swarm; that its overlay keeps the contract is tested elsewhere."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from peerinfer.core.frames import Accept, EndFrame
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.sim.network import Conditions, SimNetwork
from peerinfer.sim.overlay import SimOverlay
from tests.contract.overlay_worlds import RecordingSink, until
from tests.contract.test_overlay_contract import drain, request

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


class Swarm:
    """Nodes that joined through the first."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.stack = AsyncExitStack()
        self.overlays: dict[PeerId, SimOverlay] = {}
        self.sinks: dict[PeerId, RecordingSink] = {}

    async def start(self, *peers: PeerId) -> None:
        for peer in peers:
            join = [overlay.addrs()[0] for overlay in list(self.overlays.values())[:1]]
            self.overlays[peer] = self.network.overlay(peer, join=join)
            self.sinks[peer] = RecordingSink()
            await self.stack.enter_async_context(self.overlays[peer].run(self.sinks[peer]))
        await until(self.is_mesh, within_s=60)

    def is_mesh(self) -> bool:
        running = [each for each in self.overlays.values() if self.network.is_attached(each)]
        return all(len(overlay.links()) == len(running) - 1 for overlay in running)

    def linked(self, a: PeerId, b: PeerId) -> bool:
        return b in self.overlays[a].links() and a in self.overlays[b].links()


def delays(delay_s: float = 0.05, **others: float) -> Conditions:
    return Conditions(delay_s=delay_s, **others)


async def test_messages_take_as_long_as_the_link(autojump_clock: MockClock) -> None:
    swarm = Swarm(SimNetwork(conditions=delays(0.1)))
    async with swarm.stack:
        await swarm.start(A, B)
        sent_at = trio.current_time()
        async with swarm.overlays[A].open_call(B) as call:
            await call.send(request("r1"))
            assert isinstance(await call.receive(), Accept)
            assert trio.current_time() - sent_at == pytest.approx(0.2)
            while not isinstance(await call.receive(), EndFrame):
                pass
        await swarm.overlays[A].publish(b"x")
        await until(lambda: bool(swarm.sinks[B].messages), within_s=0.12)


async def test_a_short_cut_delays_a_call_and_a_long_one_breaks_it(autojump_clock: MockClock) -> None:
    swarm = Swarm(SimNetwork(conditions=delays(), silence_s=5.0))
    async with swarm.stack:
        await swarm.start(A, B)
        async with swarm.overlays[A].open_call(B) as call:
            await call.send(request("r1", endless=True))
            swarm.network.partition(A, B)
            await trio.sleep(4)
            swarm.network.heal(A, B)
            assert isinstance(await call.receive(), Accept)
            swarm.network.partition(A, B)
            with pytest.raises(PeerLostError, match="silent"):
                await drain(call)
        assert swarm.sinks[A].down == [B]
        await until(lambda: swarm.sinks[B].down == [A] and swarm.sinks[B].serving == 0, within_s=1)
        swarm.network.heal(A, B)
        await until(lambda: swarm.linked(A, B), within_s=31)


async def test_gossip_goes_round_a_cut(autojump_clock: MockClock) -> None:
    swarm = Swarm(SimNetwork(conditions=delays()))
    async with swarm.stack:
        await swarm.start(A, B, C)
        swarm.network.partition(A, B)
        await swarm.overlays[A].publish(b"round")
        await trio.sleep(0.11)
        assert swarm.sinks[B].messages == [(A, b"round")]
        swarm.network.partition(A, C)
        await swarm.overlays[A].publish(b"nowhere to go")
        await trio.sleep(1)
        assert swarm.sinks[B].messages == [(A, b"round")]


async def test_a_crashed_node_says_and_hears_nothing_and_comes_back_under_its_name(
    autojump_clock: MockClock,
) -> None:
    swarm = Swarm(SimNetwork(conditions=delays()))
    async with swarm.stack:
        await swarm.start(A, B, C)
        before = swarm.overlays[C], swarm.sinks[C]
        swarm.network.crash(C)
        await before[0].publish(b"from the grave")
        await swarm.overlays[A].publish(b"x")
        await trio.sleep(0.2)
        assert swarm.sinks[A].down == swarm.sinks[B].down == [C]
        assert swarm.sinks[B].messages == [(A, b"x")]
        assert not before[1].messages
        await swarm.start(C)
        assert swarm.linked(A, C)
        assert swarm.linked(B, C)
        assert sorted(swarm.sinks[A].up) == [B, C, C]


async def test_a_share_of_gossip_is_lost_and_no_frame_of_a_call(autojump_clock: MockClock) -> None:
    swarm = Swarm(SimNetwork(seed=3, conditions=delays(0.01, jitter_s=0.02, loss=0.3)))
    async with swarm.stack:
        await swarm.start(A, B)
        for _ in range(400):
            await swarm.overlays[A].publish(b"x")
        await trio.sleep(1)
        assert 240 < len(swarm.sinks[B].messages) < 320
        for number in range(50):
            async with swarm.overlays[A].open_call(B) as call:
                await call.send(request(f"r{number}"))
                while not isinstance(await call.receive(), EndFrame):
                    pass


async def test_one_link_may_be_unlike_the_others(autojump_clock: MockClock) -> None:
    swarm = Swarm(SimNetwork(conditions=delays(0.001)))
    async with swarm.stack:
        await swarm.start(A, B, C)
        swarm.network.set_conditions(A, C, delays(0.5))
        await swarm.overlays[A].publish(b"x")
        await trio.sleep(0.1)
        assert (len(swarm.sinks[B].messages), len(swarm.sinks[C].messages)) == (1, 0)
        await trio.sleep(0.5)
        assert len(swarm.sinks[C].messages) == 1


async def test_two_that_dial_each_other_at_once_have_one_link(autojump_clock: MockClock) -> None:
    network = SimNetwork(conditions=delays())
    sinks = {A: RecordingSink(), B: RecordingSink()}
    a = network.overlay(A, join=[network.overlay(B).addrs()[0]])
    b = network.overlay(B, join=[a.addrs()[0]])
    async with a.run(sinks[A]), b.run(sinks[B]):
        await trio.sleep(2)
        assert (sinks[A].up, sinks[B].up) == ([B], [A])


def test_one_seed_gives_one_history() -> None:
    """Goal: arrivals depend on the seed alone. Method: the same lossy world twice, and with another seed."""

    async def live(seed: int) -> list[tuple[PeerId, float, bytes]]:
        history: list[tuple[PeerId, float, bytes]] = []
        swarm = Swarm(SimNetwork(seed=seed, conditions=delays(0.01, jitter_s=0.05, loss=0.2)))
        async with swarm.stack:
            await swarm.start(A, B, C)
            for peer, sink in swarm.sinks.items():

                def note(author: PeerId, payload: bytes, peer: PeerId = peer) -> None:
                    history.append((peer, trio.current_time(), payload))

                sink.gossip = note  # type: ignore[method-assign]
            for number in range(30):
                for overlay in swarm.overlays.values():
                    await overlay.publish(b"%d" % number)
                await trio.sleep(0.02)
            await trio.sleep(1)
        return sorted(history)

    first, again, other = (trio.run(live, seed, clock=MockClock(autojump_threshold=0)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
