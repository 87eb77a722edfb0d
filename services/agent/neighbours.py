"""Checks the size of the kernel's neighbour table (ARP, NDP), which all users of a machine share.

The table maps addresses of local networks to hardware addresses. Its size is fixed, and an entry is made for each
address that somebody sends to, whether a machine answers or not. When it is full, no further machine can be reached.
"""

import ipaddress
import socket

import psutil

from services.agent.keeper import proc

_LIMITS = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
_ASKS_NOBODY = {"loopback", "pointopoint", "noarp"}


def places() -> int:
    """The table's size; 0 if the kernel does not say."""
    try:
        return int(proc.read_text(_LIMITS))
    except (OSError, ValueError):
        return 0


def addresses() -> int:
    """Number of IPv4 addresses in the machine's own networks."""
    found: set[ipaddress.IPv4Network] = set()
    kinds = psutil.net_if_stats()
    for name, held in psutil.net_if_addrs().items():
        if name not in kinds or _ASKS_NOBODY & set(kinds[name].flags.split(",")):
            continue
        for one in held:
            if one.family == socket.AF_INET and one.netmask:
                found.add(ipaddress.IPv4Network(f"{one.address}/{one.netmask}", strict=False))
    return sum(network.num_addresses for network in ipaddress.collapse_addresses(found))


def lacking() -> str:
    """What these settings let one job exhaust, and the fix; or ""."""
    there_are, asked_for = places(), addresses()
    if not 0 < there_are < asked_for:
        return ""
    return (
        f"a job may fill the table of neighbours ({there_are:,} places, and {asked_for:,} addresses in this machine's own "
        f"networks), and nobody here reaches a neighbour anew: sysctl -w net.ipv4.neigh.default.gc_thresh3={2 * asked_for} "
        f"net.ipv4.neigh.default.gc_thresh2={2 * asked_for}"
    )
