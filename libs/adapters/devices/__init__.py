"""Devices of a node: one seam, several kinds.

`nvml` NVIDIA's, `scan` all others', `cpu` this machine's processors, `simulated` a fleet from a file.
"""

from libs.adapters.devices.layer import CutFailed, DeviceLayer, NoDevices

__all__ = ["CutFailed", "DeviceLayer", "NoDevices"]
