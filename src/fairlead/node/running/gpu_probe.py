"""One look at the GPUs by NVML, as a program that writes JSON to stdout (`python -m`).

Each call of NVML can hang in the driver, and holds the locks of its process. So a look is a process
of its own, which the agent gives up, and which holds no GPU between two looks: a reset needs that.
It makes no context. What a GPU does not say is left out, which is not 0.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any


def look(nvml: Any) -> dict[str, Any]:
    """Return `gpus`, or `error` where NVML cannot be begun."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        is_absent = getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return {"error": str(error), "isAbsent": is_absent}
    try:
        count = nvml.nvmlDeviceGetCount()
        return {"gpus": [_gpu(nvml, index) for index in range(count)]}
    except nvml.NVMLError as error:
        return {"error": str(error)}
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {"index": index}
    errors: list[str] = []

    def put(name: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in (
                nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED,
            ):  # fmt: skip
                errors.append(str(error))
                found["isLost"] = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            return None
        if value is not None:
            found[name] = value
        return value

    device = put("_device", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    found.pop("_device", None)
    if device is not None:
        put("address", lambda: _text(nvml.nvmlDeviceGetPciInfo(device).busId))
        put("recoveryAction", lambda: _recovery_action(nvml, device))
        put("rows", lambda: [int(each) for each in nvml.nvmlDeviceGetRemappedRows(device)])
        put("uncorrected", lambda: int(nvml.nvmlDeviceGetTotalEccErrors(
            device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)))  # fmt: skip
        put("persistence", lambda: int(nvml.nvmlDeviceGetPersistenceMode(device)))
        put("eccModes", lambda: [int(each) for each in nvml.nvmlDeviceGetEccMode(device)])
        put("slowdown", lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device)))
        put("links", lambda: _links(nvml, device))
        put("fabric", lambda: _fabric(nvml, device))
    if errors:
        found["error"] = errors[0]
    return found


def _recovery_action(nvml: Any, device: Any) -> int | None:
    """Return what the driver recommends; None where it does not."""
    field = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (value,) = nvml.nvmlDeviceGetFieldValues(device, [field])
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _links(nvml: Any, device: Any) -> int:
    """Return how many links of NVLink are active; NVMLError where the GPU has none."""
    states = [nvml.nvmlDeviceGetNvLinkState(device, 0)]
    for link in range(1, nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(device, link))
        except nvml.NVMLError:  # it has no more of them
            break
    return sum(map(bool, states))


def _fabric(nvml: Any, device: Any) -> list[int]:
    """Return how the GPU's registration with the fabric of NVSwitches does: state and status."""
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info))
    return [int(info.state), int(info.status)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    import pynvml

    os.write(1, json.dumps(look(pynvml)).encode())
