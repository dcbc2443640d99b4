"""What an MPI library asks of the process manager that started its rank: PMI-1, on one descriptor.

A rank tells its own address (`put`), waits for all others (`barrier_in`) and reads theirs (`get`).
MPICH and the libraries derived from it speak it; source: MPICH `src/pmi/src/pmi_wire.c` and
`src/pmi/src/pmi_v1.c`. Each line is `cmd=NAME key=value ...`. Ranks are never spawned from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

KEY_LENGTH_MAX = 64
VALUE_LENGTH_MAX = 1024
_KVS = "fairlead"
_MAPPING = "PMI_process_mapping"

Values: TypeAlias = dict[str, str]
#: Gives what this rank has put to all, and returns what all have put, once all have called it.
Fence: TypeAlias = Callable[[Values], Awaitable[Mapping[str, str]]]


class PmiServer:
    """Serves one rank, which is alone on its node as far as the library is concerned."""

    def __init__(self, size: int, fence: Fence) -> None:
        self._size = size
        self._fence = fence
        self._put: Values = {}
        self._values: Values = {_MAPPING: f"(vector,(0,{size},1))"}
        self.has_begun = False
        self.has_finished = False
        #: Set with the exit code that a rank asks for, for all ranks, before it ends.
        self.aborted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until the rank closes its end; what is not understood ends the conversation."""
        try:
            while line := await reader.readline():
                answer = await self._answer(_request(line.decode("utf-8", "replace")))
                if answer:
                    writer.write(answer.encode() + b"\n")
                    await writer.drain()
        except (OSError, ValueError):  # it has ended; a line has no end
            return
        finally:
            writer.close()

    async def _answer(self, request: Values) -> str:
        """Return the answer's line; "" where none is expected."""
        match request.get("cmd"):
            case "init":
                self.has_begun = True
                return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
            case "get_maxes":
                return (
                    f"cmd=maxes rc=0 kvsname_max=256 keylen_max={KEY_LENGTH_MAX} "
                    f"vallen_max={VALUE_LENGTH_MAX}"
                )
            case "get_appnum":
                return "cmd=appnum rc=0 appnum=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname rc=0 kvsname={_KVS}"
            case "get_universe_size":
                return f"cmd=universe_size rc=0 size={self._size}"
            case "put":
                self._put[request.get("key", "")] = request.get("value", "")
                return "cmd=put_result rc=0"
            case "barrier_in":
                put, self._put = self._put, {}
                self._values.update(await self._fence(put))
                return "cmd=barrier_out rc=0"
            case "get":
                value = self._values.get(request.get("key", ""))
                return "cmd=get_result rc=1" if value is None else f"cmd=get_result rc=0 {value=!s}"
            case "finalize":
                self.has_finished = True
                return "cmd=finalize_ack rc=0"
            case "abort":
                if not self.aborted.done():
                    code = request.get("exitcode", "")
                    self.aborted.set_result(int(code) % 256 if code.isdecimal() else 1)
                return ""
            case command:
                return f"cmd={command}_result rc=1 msg=not_supported"


def _request(line: str) -> Values:
    out: Values = {}
    for word in line.split():
        key, _, value = word.partition("=")
        out[key] = value
    return out


#: What the library reads besides the descriptor.
def environment(rank: int, size: int, descriptor: int) -> Values:
    """Return the variables of a rank."""
    return {
        "PMI_FD": str(descriptor),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "1",
    }
