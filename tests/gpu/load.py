"""What a program finds of NVIDIA GPUs, and work for one: CUDA's driver interface through ctypes, so that nothing need be
installed. Prints one JSON object a line: first what it finds, then that it works, then that it is done.

    python load.py [SECONDS [MIB]]        work so long with so much memory; without it looks only
"""

import ctypes
import glob
import json
import os
import sys
import time
import uuid
from collections.abc import Callable

FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
"""Where the driver's libraries may be, if the linker does not know of them: they load each other by name."""
SPIN = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %r<5>;
    .reg .pred %p;
    ld.param.u64 %r1, [cycles];
    mov.u64 %r2, %clock64;
AGAIN:
    mov.u64 %r3, %clock64;
    sub.u64 %r4, %r3, %r2;
    setp.lt.u64 %p, %r4, %r1;
    @%p bra AGAIN;
    ret;
}
\0"""
"""A kernel that does nothing for so many cycles."""


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)


def library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        here = [folder for folder in FOLDERS if os.path.exists(f"{folder}/libcuda.so.1")]
        if not here or "LD_LIBRARY_PATH" in os.environ:
            return None
        os.environ["LD_LIBRARY_PATH"] = here[0]
        os.execv(sys.executable, [sys.executable, *sys.argv])


def found(cuda: ctypes.CDLL | None) -> list[str]:
    """UUIDs of the devices that can be used, as NVML writes them; says all that can be seen."""
    files = sorted(glob.glob("/dev/nvidia[0-9]*"))
    if cuda is None:
        say(files=files, error="no libcuda", devices=[])
        return []
    error = cuda.cuInit(0)
    count = ctypes.c_int()
    if not error:
        error = cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for number in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid_v2(raw, number)
        devices.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    say(files=files, error=error, devices=devices)
    return devices


def worker(cuda: ctypes.CDLL, mib: int) -> Callable[[], None]:
    """What works some 10 ms each time that it is called, and holds so much memory of the first device."""

    def done(error: int) -> None:
        if error:
            sys.exit(f"CUDA says {error}")

    context, memory, module, kernel = (ctypes.c_void_p() for _ in range(4))
    done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    done(cuda.cuCtxSetCurrent(context))
    done(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)))
    done(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(mib << 20)))
    done(cuda.cuModuleLoadData(ctypes.byref(module), SPIN))
    done(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin"))
    cycles = ctypes.c_uint64(20_000_000)  # some 10 ms
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
    kept = cycles, arguments  # the one points to the other, and does not hold it

    def step() -> None:
        done(cuda.cuLaunchKernel(kernel, 1024, 1, 1, 256, 1, 1, 0, None, kept[1], None))
        done(cuda.cuCtxSynchronize())

    return step


def work(cuda: ctypes.CDLL, seconds: float, mib: int) -> None:
    step = worker(cuda, mib)
    end = time.monotonic() + seconds
    step()
    say(works=mib)
    while time.monotonic() < end:
        step()


def main() -> None:
    cuda = library()
    if found(cuda) and len(sys.argv) > 1:
        assert cuda is not None
        work(cuda, float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
    say(done=True)


if __name__ == "__main__":
    main()
