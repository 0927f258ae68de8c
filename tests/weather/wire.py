"""The network between agents and the control plane: connections that are cut, stall, and, now and then, say a thing twice or late."""

from __future__ import annotations

import asyncio
import random
from typing import Any

CUT = object()


class Weather:
    """How bad it is now. Probabilities of one message, seconds."""

    def __init__(self, randomness: random.Random) -> None:
        self.randomness = randomness
        self.calm()

    def calm(self) -> None:
        """No faults, and little delay."""
        self.delay_s = 0.005
        self.long_delay = 0.0       # a message, and with it the connection, is held up to `long_delay_s`
        self.long_delay_s = 20.0
        self.double = 0.0
        self.reorder = 0.0
        self.lose_request = 0.0     # an RPC fails before, or after, it had its effect
        self.lose_answer = 0.0
        self.double_request = 0.0

    def rough(self) -> None:
        self.long_delay, self.double, self.reorder = 0.01, 0.02, 0.02
        self.lose_request = self.lose_answer = self.double_request = 0.1

    @property
    def is_rough(self) -> bool:
        return self.long_delay > 0

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.randomness.random() < probability

    def some_delay_s(self) -> float:
        if self.happens(self.long_delay):
            return self.randomness.uniform(0, self.long_delay_s)
        return self.randomness.uniform(0, self.delay_s)


class Pipe:
    """One direction of a connection. In order, but for messages that the weather brings late or twice."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._last_at = 0.0
        self.is_cut = False

    def send(self, message: Any) -> None:
        loop, weather = asyncio.get_running_loop(), self._weather
        at = max(loop.time() + weather.some_delay_s(), self._last_at)
        if weather.happens(weather.double):
            loop.call_at(at + weather.randomness.uniform(0, 5), self._arrive, message)
        if weather.happens(weather.reorder):
            loop.call_at(at + weather.randomness.uniform(0, 5), self._arrive, message)
            return
        self._last_at = at
        loop.call_at(at, self._arrive, message)

    async def receive(self) -> Any:
        """The next message, or CUT for ever."""
        if self.is_cut and self._inbox.empty():
            return CUT
        message = await self._inbox.get()
        if message is CUT:
            self._inbox.put_nowait(CUT)
        return message

    def cut(self) -> None:
        """What is on its way is lost; what has arrived can be read."""
        if not self.is_cut:
            self.is_cut = True
            self._inbox.put_nowait(CUT)

    def _arrive(self, message: Any) -> None:
        if not self.is_cut:
            self._inbox.put_nowait(message)


class Connection:
    def __init__(self, weather: Weather) -> None:
        self.to_server, self.to_agent = Pipe(weather), Pipe(weather)

    def cut(self) -> None:
        self.to_server.cut()
        self.to_agent.cut()

    # ------------------------------------------------------------ the server's end, as grpclib shows it

    async def recv_message(self) -> Any:
        message = await self.to_server.receive()
        return None if message is CUT else message

    async def send_message(self, message: Any) -> None:
        self.to_agent.send(message)
