"""`python -m services.agent`"""

from libs.adapters.devices import NoDevices
from libs.adapters.devices.fleet import FleetError
from libs.ports.folders import unwritable
from libs.service.app import UVLOOP, run
from libs.service.starting import read_settings, starting
from services.agent.app import make_app
from services.agent.keeper.find import NoKeeper
from services.agent.keeper.waiting import shares_user
from services.agent.settings import AgentSettings
from services.agent.state import folder_in

with starting("agent", FleetError, NoDevices, NoKeeper):
    settings = read_settings(AgentSettings)
    if why := unwritable(folder := folder_in(settings.state_path())):
        raise ValueError(f"its state folder {folder} cannot be used, {why}, or name another with BATON_STATE_DIR")
    app = make_app(settings)
run(app, settings, "agent", loop="services.agent.polling:loop" if shares_user() else UVLOOP)
