"""`python -m services.agent`"""

import sys

from libs.adapters.devices import NoDevices
from libs.adapters.devices.fleet import FleetError
from libs.service.app import run
from services.agent.app import make_app
from services.agent.keeper.find import NoKeeper
from services.agent.settings import AgentSettings

settings = AgentSettings()
try:
    app = make_app(settings)
except (FleetError, NoDevices, NoKeeper, ValueError) as e:
    sys.exit(f"agent: {e}")
run(app, settings, "agent")
