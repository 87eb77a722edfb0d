"""Devices of a node: one seam, several kinds.

`nvml` NVIDIA's, `scan` all others', `cpu` this machine's processors, `simulated` a fleet from a file.
"""

from libs.adapters.devices.layer import DeviceLayer, NoDevices, RepartitionFailed

__all__ = ["DeviceLayer", "NoDevices", "RepartitionFailed"]
