"""Placement's settings, from the environment with the prefix `BATON_PLACEMENT_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.core.scheduling.allowances import NODE_DEVICES
from libs.service.settings import CycleSettings


class PlacementSettings(CycleSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_PLACEMENT_")

    snapshot_records: int = Field(default=5000, ge=100, description="ledger records between snapshots of the state")
    repartition: bool = Field(default=True, description="repartition idle MIG boards for profiles that are waited for")
    repartition_after_s: float = Field(
        default=30.0, ge=0, description="how long a job waits for an instance before that, s"
    )
    repartition_rest_s: float = Field(default=300.0, ge=0, description="how long a board then stays as it is, s")
    repartition_answer_s: float = Field(
        default=600.0, gt=0, description="how long a node may take to answer a repartition before it is withdrawn, s"
    )
    node_devices: int = Field(
        default=NODE_DEVICES, ge=1, description="ids of devices that one node may ever have had; all are kept"
    )
    readers_hold_s: float = Field(
        default=600.0, ge=0, description="after an upgrade: no new kinds of events so long after an older reader, s"
    )
    batch: int = Field(default=256, ge=1, le=1000, description="inbox messages decided in one record at the most")
    linger_ms: float = Field(
        default=10.0, ge=0, le=100, description="how long a few inputs wait for more while much is decided, ms"
    )
