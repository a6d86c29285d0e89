"""A program that ends with an error unless CUDA works in its environment: ``python mps_probe.py DEVICE``.

It makes a context on the device and ends. It is run by its path and imports neither torch nor this package, so it takes
as long as the driver takes.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_LIMIT_S = 60


def main() -> None:
    signal.alarm(_LIMIT_S)  # a driver that waits for ever is of no use either
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for name, arguments in {
        "cuInit": (ctypes.c_uint(0),),
        "cuDevicePrimaryCtxRetain": (ctypes.byref(context), ctypes.c_int(int(sys.argv[1]))),
    }.items():
        if code := getattr(driver, name)(*arguments):
            sys.exit(f"{name} failed with error {code}")


if __name__ == "__main__":
    main()
