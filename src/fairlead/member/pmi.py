"""What an MPI library asks of the process manager that started its rank, on one descriptor.

A rank tells its own address (put), waits for all others (barrier, fence) and reads theirs (get).
MPICH and the libraries derived from it speak PMI-1; those that are built for `srun --mpi=pmi2`
speak PMI-2, and say so in the first line. Source: MPICH `src/pmi/src/pmi_wire.c`, `pmi_v1.c` and
`pmi_v2.c`. Ranks are never spawned from here.

    PMI-1  cmd=NAME key=value ...                      a line
    PMI-2  000042cmd=NAME;key=value;...                six digits of length; `;;` is one in a value
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

KEY_LENGTH_MAX = 64
VALUE_LENGTH_MAX = 1024
_MAPPING = "PMI_process_mapping"
_FIRST = "pmi_version=1 pmi_subversion=1"
_LENGTH_DIGITS = 6
#: A value up to a semicolon that is no doubled one.
_FIELD = re.compile(r"([^=;]+)=((?:[^;]|;;)*)(?:;|$)")

Values: TypeAlias = dict[str, str]
#: Gives what this rank has put to all, and returns what all have put, once all have called it.
Fence: TypeAlias = Callable[[Values], Awaitable[Mapping[str, str]]]


class RankServer(Protocol):
    """Serves one rank what its MPI library asks of a process manager, from before its start."""

    #: What the rank's environment and open descriptors have more.
    variables: Values
    descriptors: tuple[int, ...]
    has_begun: bool
    has_finished: bool
    #: Set with the exit code that a rank asks for, for all ranks, before it ends.
    aborted: asyncio.Future[int]

    async def serve(self) -> None:
        """Answer until the rank has ended; begins once it has its descriptors."""
        ...

    def close(self) -> None:
        """Answer no more."""
        ...


class PmiServer:
    """Serves one rank, which is alone on its node as far as the library is concerned."""

    def __init__(self, rank: int, size: int, fence: Fence, name: str) -> None:
        """`name` is that of the communicator, the same for all of its ranks and no other's.

        MPICH names files in /dev/shm after it, which all users of a machine have in common.
        """
        self._ours, self._theirs = socket.socketpair()
        self.descriptors = (self._theirs.fileno(),)
        #: What the library reads besides the descriptor.
        self.variables: Values = {
            "PMI_FD": str(self._theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(size),
            "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1",
        }  # fmt: skip
        self._size = size
        self._name = name
        self._fence = fence
        self._put: Values = {}
        self._values: Values = {_MAPPING: f"(vector,(0,{size},1))"}
        self._of_node: Values = {}
        self.has_begun = False
        self.has_finished = False
        self.aborted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Leave no descriptor that the rank has not taken."""
        self._theirs.close()

    async def serve(self) -> None:
        """Answer until the rank closes its end; what is not understood ends the conversation."""
        self._theirs.close()
        reader, writer = await asyncio.open_connection(sock=self._ours)
        try:
            while line := await reader.readline():
                request = _request(line.decode("utf-8", "replace"))
                answer = await self._answer(request)
                if answer:
                    writer.write(answer.encode() + b"\n")
                    await writer.drain()
                if request.get("pmi_version") == "2":
                    await self._serve_second(reader, writer)
                    return
        except (OSError, ValueError, asyncio.IncompleteReadError):  # it has ended; it has no end
            return
        finally:
            writer.close()

    async def _answer(self, request: Values) -> str:
        """Return the answer's line; "" where none is expected."""
        match request.get("cmd"):
            case "init":
                self.has_begun = True
                is_second = request.get("pmi_version") == "2"
                version = "pmi_version=2 pmi_subversion=0" if is_second else _FIRST
                return f"cmd=response_to_init rc=0 {version}"
            case "get_maxes":
                return (
                    f"cmd=maxes rc=0 kvsname_max=256 keylen_max={KEY_LENGTH_MAX} "
                    f"vallen_max={VALUE_LENGTH_MAX}"
                )
            case "get_appnum":
                return "cmd=appnum rc=0 appnum=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname rc=0 kvsname={self._name}"
            case "get_universe_size":
                return f"cmd=universe_size rc=0 size={self._size}"
            case "put":
                self._put[request.get("key", "")] = request.get("value", "")
                return "cmd=put_result rc=0"
            case "barrier_in":
                await self._exchange()
                return "cmd=barrier_out rc=0"
            case "get":
                value = self._values.get(request.get("key", ""))
                return "cmd=get_result rc=1" if value is None else f"cmd=get_result rc=0 {value=!s}"
            case "finalize":
                self.has_finished = True
                return "cmd=finalize_ack rc=0"
            case "abort":
                self._abort(request)
                return ""
            case command:
                return f"cmd={command}_result rc=1 msg=not_supported"

    async def _exchange(self) -> None:
        put, self._put = self._put, {}
        self._values.update(await self._fence(put))

    def _abort(self, request: Values) -> None:
        if not self.aborted.done():
            code = request.get("exitcode", "")
            self.aborted.set_result(int(code) % 256 if code.isdecimal() else 1)

    async def _serve_second(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer in PMI-2, as `serve`."""
        while True:
            length = int(await reader.readexactly(_LENGTH_DIGITS))
            request = _fields((await reader.readexactly(length)).decode("utf-8", "replace"))
            answer = await self._second_answer(request)
            if answer is None:
                continue
            thread = {"thrid": request["thrid"]} if "thrid" in request else {}
            text = _encoded(
                {"cmd": f"{request.get('cmd')}-response", **thread, "rc": "0", **answer}
            )
            writer.write(f"{len(text):>{_LENGTH_DIGITS}}".encode() + text)
            await writer.drain()

    async def _second_answer(self, request: Values) -> Values | None:
        """Return what is answered beside the command and the code 0; None where nothing is."""
        key, value = request.get("key", ""), request.get("value", "")
        match request.get("cmd"):
            case "fullinit":
                return {
                    "pmi-version": "2", "pmi-subversion": "0", "rank": request.get("pmirank", ""),
                    "size": str(self._size), "appnum": "0", "debugged": "FALSE",
                    "pmiverbose": "FALSE",
                }  # fmt: skip
            case "job-getid":
                return {"jobid": self._name}
            case "info-getjobattr" if key == "universeSize":
                return _found(str(self._size))
            case "info-getjobattr":
                return _found(self._values.get(key) if key == _MAPPING else None)
            case "info-putnodeattr":
                self._of_node[key] = value
                return {}
            case "info-getnodeattr":
                return _found(self._of_node.get(key))
            case "kvs-put":
                self._put[key] = value
                return {}
            case "kvs-fence":
                await self._exchange()
                return {}
            case "kvs-get":
                return _found(self._values.get(key))
            case "finalize":
                self.has_finished = True
                return {}
            case "abort":
                self._abort(request)
                return None
            case _:
                return {"rc": "1", "errmsg": "not supported"}


def _found(value: str | None) -> Values:
    return {"found": "FALSE"} if value is None else {"found": "TRUE", "value": value}


def _fields(text: str) -> Values:
    return {key: value.replace(";;", ";") for key, value in _FIELD.findall(text)}


def _encoded(values: Values) -> bytes:
    parts = (f"{key}={value.replace(';', ';;')};" for key, value in values.items())
    return "".join(parts).encode()


def _request(line: str) -> Values:
    out: Values = {}
    for word in line.split():
        key, _, value = word.partition("=")
        out[key] = value
    return out
