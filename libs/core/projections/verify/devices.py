"""Checks devices (I1, I8): grants only of devices of a node that is up, never beyond compute or memory, each with a
larger epoch. At the end, free capacity is what nobody holds."""

from typing import ClassVar

from libs.core.projections.verify.books import DeviceRow, Subject
from schemas import ledger as led
from schemas.ids import attempt_id
from schemas.resources import WHOLE_MILLI, Claim, Device, Inventory


class Devices(Subject):
    """Keeps a row per device, with its grants."""

    handlers: ClassVar = {
        led.NodeJoined: "joined",
        led.BoardCutDone: "joined",
        led.JobGranted: "granted",
        led.DevicesFreed: "freed",
        led.DeviceQuarantined: "quarantined",
        led.DeviceReturned: "returned",
    }

    def joined(self, e: led.NodeJoined | led.BoardCutDone) -> None:
        """A repartitioned board's devices stay held. A node with a new life holds nothing (`nodes`)."""
        if self.books.format is not None and len({d.id for d in e.inventory.devices}) < len(e.inventory.devices):
            self.books.broken("I8", f"node {e.inventory.node} offers a device twice")
        known = self.books.nodes.get(e.inventory.node)
        if known is not None:
            for gone in known.offered.difference(device.id for device in e.inventory.devices):
                if (row := self.books.devices.get(gone)) is not None and row.node == known.name:
                    row.quarantine = None
        for device in e.inventory.devices:
            row = self.books.devices.get(device.id)
            if row is None:
                self.books.devices[device.id] = _row(device, e.inventory)
                continue
            if row.node != e.inventory.node and self.books.offered(device.id, row.node):
                self.books.broken("I8", f"node {e.inventory.node} joins with {device.id}, which is node {row.node}'s")
            new = _row(device, e.inventory)
            if row.node != new.node:
                row.quarantine = None
            row.about, row.memory_mib, row.node, row.kind = new.about, new.memory_mib, new.node, new.kind

    def quarantined(self, e: led.DeviceQuarantined) -> None:
        row, node = self.books.devices.get(e.device), self.books.nodes.get(e.node)
        if row is None or not self.books.offered(e.device, e.node) or node is None or node.incarnation != e.incarnation:
            self.books.broken("I8", f"{e.device} is put in quarantine, and is not of node {e.node} in its present life")
            return
        if row.quarantine == e.since_us:
            self.books.broken("I8", f"{e.device} is put in the same quarantine twice")
        row.quarantine = e.since_us

    def returned(self, e: led.DeviceReturned) -> None:
        row = self.books.devices.get(e.device)
        if row is None or row.quarantine != e.since_us:
            self.books.broken("I8", f"{e.device} is returned from a quarantine that it is not in")
        elif row.node != e.node:
            self.books.broken("I8", f"{e.device} is returned by node {e.node}, it is of {row.node}")
        if row is not None:
            row.quarantine = None

    def granted(self, e: led.JobGranted) -> None:
        name = attempt_id(e.job_id, e.attempt)
        for claim in e.claims:
            self._add_claim(e.job_id, name, claim)

    def _add_claim(self, job: str, name: str, claim: Claim) -> None:
        books = self.books
        row = books.devices.get(claim.device)
        if row is not None and row.quarantine is not None:
            books.broken("I8", f"{job} is granted {claim.device}, which is in quarantine")
        if row is not None and row.going:
            books.broken("I8", f"{job} is granted {claim.device}, which a repartition destroys")
        if row is None or not books.offered(claim.device, claim.node):
            books.broken("I8", f"{job} is granted {claim.device} of {claim.node}, which is not in the pool now")
            if row is None:
                return
        if claim.epoch <= row.epoch:
            books.broken("I1", f"{claim.device}: epoch {claim.epoch} after {row.epoch}")
        row.epoch = max(row.epoch, claim.epoch)
        row.claims[name] = claim
        if len(row.claims) == 1:
            milli, memory_mib = claim.milli, claim.memory_mib
        else:
            milli = sum(c.milli for c in row.claims.values())
            memory_mib = sum(c.memory_mib for c in row.claims.values())
        if milli > WHOLE_MILLI:
            books.broken("I1", f"{claim.device} is granted beyond its compute to {', '.join(row.claims)}")
        if memory_mib > row.memory_mib:
            books.broken("I1", f"{claim.device} is granted beyond its memory to {', '.join(row.claims)}")

    def freed(self, e: led.DevicesFreed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        name = attempt_id(e.job_id, e.attempt)
        for claim in found[1].parts.get(e.node, ()):
            row = self.books.devices.get(claim.device)
            if row is not None and row.claims.pop(name, None) is None:
                self.books.broken("I8", f"{name} frees {claim.device} and does not hold it")

    def finish(self) -> None:
        """Used and free add up to the device, and the row agrees with the open attempts."""
        books = self.books
        held = sum(len(claims) for job in books.jobs.values() if job.open for claims in job.open.parts.values())
        claims = 0
        for device_id, row in books.devices.items():
            used = sum(c.milli for c in row.claims.values())
            claims += len(row.claims)
            if not 0 <= used <= WHOLE_MILLI:
                books.broken("I8", f"{device_id} ends with {used} milli in use")
        if claims != held:
            books.broken("I8", f"the ledger ends with {claims} claims on devices, attempts hold {held}")


def _row(device: Device, inventory: Inventory) -> DeviceRow:
    measured = device.memory_free_mib
    memory_mib = device.memory_mib if measured is None or measured > device.memory_mib else measured
    return DeviceRow(device, memory_mib, inventory.node, (device.model, device.mig_profile))
