"""`python -m services.agent`"""

from libs.adapters.devices import NoDevices
from libs.adapters.devices.fleet import FleetError
from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.agent.app import make_app
from services.agent.keeper.find import NoKeeper
from services.agent.settings import AgentSettings

with starting("agent", FleetError, NoDevices, NoKeeper):
    settings = read_settings(AgentSettings)
    app = make_app(settings)
run(app, settings, "agent")
