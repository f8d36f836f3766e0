"""A TCP proxy that can go deaf or break: what a bad network does to a connection.

Owns the two directions of each connection; knows no protocol. Invariant: while it is open it passes bytes on
unchanged and in order; a black hole keeps connections open and passes nothing.
"""

import asyncio


class Proxy:
    """Listens on a free loopback port and connects to target: host:port or unix:/path."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        self.break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._open.clear()

    def pass_on(self) -> None:
        self._open.set()

    def break_all(self) -> None:
        """Resets every connection; new ones may come."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._target.startswith("unix:"):
                far_reader, far_writer = await asyncio.open_unix_connection(
                    self._target.removeprefix("unix:")
                )
            else:
                host, port = self._target.rsplit(":", 1)
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
