"""What an MPI library that speaks PMIx asks of the process manager: served by the image's libpmix.

Open MPI asks for its rank and the addresses of the others over a protocol that changes with each
version. So the library of the image itself is the server, as it is in Slurm's own daemon; what it
leaves to its host are the exchange between servers (a fence), and to note who begins, finishes and
aborts. It is used through ctypes: `PMIx_server_...` and `PMIx_Info_list_...` of PMIx 4 and 5, with
the layouts of their `pmix_common.h` and `pmix_server.h`. It listens at 127.0.0.1, and serves the
user of this process if he gives the name space, which only this attempt can compute.

Each rank has a server of its own and is alone on its node as far as the library is concerned, as
with PMI-1. Not served: spawning, publishing, and exchanges among some of the ranks.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.member.pmi import Fence, Values

LIBRARY = "libpmix.so.2"
#: Open MPI 4 and 5. It runs as a communicator of one where no server is found.
MPI_LIBRARY = "libmpi.so.40"
#: It waits for its own thread, which may wait for a client that it has refused.
FINALIZE_SECONDS_MAX = 5.0
#: Programs that are beside the libraries of an Open MPI.
_PROGRAMS = ("prterun", "ompi_info", "orterun")
_PLACES = ("lib", "lib64", "lib/openmpi", "lib/pmix2/lib")

# pmix_common.h
_SUCCESS, _DONE = 0, -157  # PMIX_SUCCESS; PMIX_OPERATION_SUCCEEDED: no callback comes
_NOT_SUPPORTED = -47
_ALL_RANKS = 0xFFFF_FFFE
_STRING, _UINT32 = 3, 14
_NAMESPACE_BYTES = 256


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * _NAMESPACE_BYTES), ("rank", ctypes.c_uint32))


class _DataArray(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint16), ("size", ctypes.c_size_t), ("array", ctypes.c_void_p),
    )  # fmt: skip


_P, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_PROCESSES = ctypes.POINTER(_Process)
# Of pmix_server_module_t, in its order.
_Connected = ctypes.CFUNCTYPE(_INT, _PROCESSES, _P, _P, _P)
_Aborted = ctypes.CFUNCTYPE(_INT, _PROCESSES, _P, _INT, _TEXT, _PROCESSES, _SIZE, _P, _P)
_Fenced = ctypes.CFUNCTYPE(_INT, _PROCESSES, _SIZE, _P, _SIZE, _P, _SIZE, _P, _P)
_MODULE_FUNCTIONS_MAX = 64
# What the library gives to be called back.
_Exchanged = ctypes.CFUNCTYPE(None, _INT, _TEXT, _SIZE, _P, _P, _P)
_Released = ctypes.CFUNCTYPE(None, _P)

_Asked: TypeAlias = tuple[bytes, int, int]


class NoPmixError(Exception):
    """The image has an Open MPI, and no libpmix that can serve it."""


def find_library() -> ctypes.CDLL | None:
    """Return the image's libpmix; None where neither it nor an Open MPI is there, so that nothing
    would ask for it. NoPmixError.
    """
    library = next(_loaded(LIBRARY), None)
    if library is not None and hasattr(library, "PMIx_Info_list_convert"):
        return library
    if library is not None:
        raise NoPmixError(f"{LIBRARY} of this image is older than PMIx 4")
    has_mpi = any(path.exists() for path in _places(MPI_LIBRARY)) or any(_loaded(MPI_LIBRARY))
    if not has_mpi:
        return None
    raise NoPmixError(
        f"this image has {MPI_LIBRARY}, and no {LIBRARY} that could serve it: install it, or take "
        "--mpi=none where the program does not use MPI"
    )


def _places(name: str) -> list[Path]:
    """Return where a library may be that is in none of the system's places."""
    found = (shutil.which(program) for program in _PROGRAMS)
    roots = dict.fromkeys(Path(path).resolve().parents[1] for path in found if path)
    return [root / place / name for root in roots for place in _PLACES]


def _loaded(name: str) -> Iterator[ctypes.CDLL]:
    for path in (name, *map(str, _places(name))):
        with suppress(OSError):
            yield ctypes.CDLL(path)


class PmixServer:
    """Serves one rank; as `pmi.RankServer`."""

    descriptors: tuple[int, ...] = ()

    def __init__(self, library: ctypes.CDLL, rank: int, size: int, fence: Fence) -> None:
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._fence = fence
        self._rank = rank
        self._size = size
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        self._given: dict[int, bytes] = {}  # until the library has taken it
        self.has_begun = False
        self.has_finished = False
        self.aborted: asyncio.Future[int] = self._loop.create_future()
        self.variables: Values = {}
        self._directory = ""
        # The library keeps no reference to what it calls.
        self._functions = (
            _Connected(self._on_connected), _Connected(self._on_finalized),
            _Aborted(self._on_aborted), _Fenced(self._on_fenced),
        )  # fmt: skip
        self._released = _Released(self._on_released)
        addresses = (ctypes.cast(each, _P).value for each in self._functions)
        self._module = (_P * _MODULE_FUNCTIONS_MAX)(*addresses)

    def open(self, namespace: str) -> None:
        """Begin to serve a rank of this name space; OSError."""
        self._directory = tempfile.mkdtemp(prefix="fairlead-pmix-")
        self._call(
            "PMIx_server_init", self._module,
            *self._infos({"pmix.srvr.tmpdir": self._directory, "pmix.hname": _node(self._rank)}),
        )  # fmt: skip
        nodes = ",".join(map(_node, range(self._size)))
        ranks = ";".join(map(str, range(self._size)))
        job = {
            "pmix.univ.size": self._size, "pmix.job.size": self._size, "pmix.max.size": self._size,
            "pmix.num.nodes": self._size, "pmix.local.size": 1, "pmix.node.size": 1,
            "pmix.jobid": namespace, "pmix.nmap": self._written("PMIx_generate_regex", nodes),
            "pmix.pmap": self._written("PMIx_generate_ppn", ranks),
        }  # fmt: skip
        name = ctypes.create_string_buffer(namespace.encode(), _NAMESPACE_BYTES)
        self._call("PMIx_server_register_nspace", name, 1, *self._infos(job), None, None)
        process = _Process(namespace.encode(), self._rank)
        self._call(
            "PMIx_server_register_client", ctypes.byref(process),
            ctypes.c_uint32(os.getuid()), ctypes.c_uint32(os.getgid()), None, None, None,
        )  # fmt: skip
        variables = ctypes.POINTER(_TEXT)()
        self._call("PMIx_server_setup_fork", ctypes.byref(process), ctypes.byref(variables))
        number = 0
        while variables and (line := variables[number]) is not None:
            key, _, value = line.decode().partition("=")
            self.variables[key] = value
            number += 1

    def close(self) -> None:
        """Serve nothing any more, and leave no file."""
        finalizer = threading.Thread(target=self._library.PMIx_server_finalize, daemon=True)
        finalizer.start()
        finalizer.join(FINALIZE_SECONDS_MAX)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def serve(self) -> None:
        """Exchange what the rank gives with the others, one exchange at a time, until cancelled."""
        while True:
            data, answer, context = await self._asked.get()
            values = await self._fence({str(self._rank): base64.b64encode(data).decode()})
            # In an order of its own: each server's part says whose it is.
            whole = b"".join(base64.b64decode(value) for value in values.values())
            self._given[context] = whole
            _Exchanged(answer)(_SUCCESS, whole, len(whole), context, self._released, context)

    # From the library's thread

    def _on_connected(self, *_: object) -> int:
        self.has_begun = True
        return _DONE

    def _on_finalized(self, *_: object) -> int:
        self.has_finished = True
        return _DONE

    def _on_aborted(self, _rank: object, _ours: object, status: int, *_: object) -> int:
        self._loop.call_soon_threadsafe(self._note_aborted, status % 256 or 1)
        return _DONE

    def _on_fenced(self, ranks: Any, count: int, *words: Any) -> int:
        if not (count == self._size or (count == 1 and ranks[0].rank == _ALL_RANKS)):
            return _NOT_SUPPORTED
        _, _, data, length, answer, context = words
        asked = (ctypes.string_at(data, length) if data else b"", answer, context)
        self._loop.call_soon_threadsafe(self._asked.put_nowait, asked)
        return _SUCCESS

    def _on_released(self, context: int) -> None:
        self._given.pop(context, None)

    def _note_aborted(self, code: int) -> None:
        if not self.aborted.done():
            self.aborted.set_result(code)

    # To the library

    def _infos(self, values: dict[str, str | int]) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
        """Return values as an array of the library's, and its length."""
        start: Callable[[], int] = self._library.PMIx_Info_list_start
        self._library.PMIx_Info_list_start.restype = _P
        made, found = _P(start()), _DataArray()
        for key, value in values.items():
            is_text = isinstance(value, str)
            data = _TEXT(value.encode()) if is_text else ctypes.byref(ctypes.c_uint32(value))
            kind = ctypes.c_uint16(_STRING if is_text else _UINT32)
            self._call("PMIx_Info_list_add", made, key.encode(), data, kind)
        self._call("PMIx_Info_list_convert", made, ctypes.byref(found))
        return _P(found.array), _SIZE(found.size)

    def _written(self, function: str, text: str) -> str:
        """Return a list of nodes, or of their ranks, as the library writes it."""
        found = _TEXT()
        self._call(function, text.encode(), ctypes.byref(found))
        return (found.value or b"").decode()

    def _call(self, function: str, *words: object) -> None:
        code: int = getattr(self._library, function)(*words)
        if code not in (_SUCCESS, _DONE):
            self._library.PMIx_Error_string.restype = _TEXT
            said: bytes = self._library.PMIx_Error_string(code)
            raise OSError(f"{function}: {said.decode()}")


def _node(rank: int) -> str:
    return f"rank{rank}"
