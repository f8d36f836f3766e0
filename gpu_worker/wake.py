"""The CUDA device makes its context while this process imports its modules.

Owns that thread; knows neither PyTorch nor what it will find. Invariant: without a driver or a device nothing
happens, and whoever opens the device later says what is wrong.
"""

import ctypes
import threading

_DRIVER = "libcuda.so.1"


def wake_device() -> None:
    """Starts a thread that makes the first device's primary context, which CUDA's runtime then finds made."""
    threading.Thread(target=_make_context, name="wake-device", daemon=True).start()


def _make_context() -> None:
    """The driver's calls (cuInit and on) leave the interpreter to others while they run."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
